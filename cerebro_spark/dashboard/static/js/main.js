// Starts the page: reads the address, shows the page that it asks for, and closes the one before.

import { server } from "./api.js";
import { closeDialogs } from "./dialog.js";
import { emptyState, h, setText } from "./dom.js";
import { ComparePage } from "./page_compare.js";
import { RunPage } from "./page_run.js";
import { RunsPage } from "./page_runs.js";
import { TrialPage } from "./page_trial.js";
import { links, route } from "./router.js";
import { themeButton } from "./theme.js";
import { hideTip } from "./tip.js";

const PAGES = { runs: RunsPage, run: RunPage, trial: TrialPage, compare: ComparePage };
const LINK_WORDS = { live: "Live", over: "Not running", lost: "Connection lost, trying again" };
const main = document.getElementById("main");
const linkNode = document.getElementById("link");
const shell = { link: showLink };
let shown = null;
let address = null;

/** Say how the connection is: "live", "over" if nothing more is to come, "lost", or "" while there is none. */
function showLink(state) {
  linkNode.dataset.state = state;
  setText(linkNode, LINK_WORDS[state] ?? "");
}

/** A page that says that there is none. */
class UnknownPage {
  constructor() {
    this.title = "Not found";
    this.crumbs = [["Runs", links.runs()], ["Not found", null]];
    const back = h("a", { class: "button", href: links.runs() }, "All runs");
    this.node = h("div", { class: "card" }, emptyState("There is no such page", "The address may be cut off or mistyped.", back, false));
  }

  close() {}
}

function showCrumbs(crumbs) {
  const items = crumbs.map(([text, href]) => h("li", {}, href ? h("a", { href }, text) : h("span", { "aria-current": "page" }, text)));
  document.getElementById("crumbs").replaceChildren(...items);
}

function samePage(one, other) {
  return one && JSON.stringify({ ...one, part: "" }) === JSON.stringify({ ...other, part: "" });
}

function show() {
  const wanted = route(location.hash);
  if (samePage(address, wanted)) {
    shown.go?.(wanted);
    return;
  }
  const first = address === null;
  address = wanted;
  // A dialog that stayed would command what is no longer shown.
  closeDialogs();
  shown?.close();
  hideTip();
  showLink("");
  shown = new (PAGES[wanted.page] ?? UnknownPage)(wanted, shell);
  document.title = `${shown.title} · Cerebro`;
  showCrumbs(shown.crumbs);
  main.replaceChildren(shown.node);
  scrollTo(0, 0);
  // Who follows a link hears the new page, not the end of the old one.
  if (!first) main.focus({ preventScroll: true });
}

document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
themeButton(document.getElementById("theme"));
addEventListener("hashchange", show);
show();
server().then(
  ({ read_only: readOnly }) => {
    document.getElementById("mode").hidden = !readOnly;
  },
  () => {}, // The page that is shown says so, with what can be done.
);
