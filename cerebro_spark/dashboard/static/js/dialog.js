// Dialogs: a title, what will happen in words, inputs, and what came of it.

import { h, setText } from "./dom.js";

const AGAIN = "It may have been sent all the same. Pressing the button again sends the same command, which is obeyed once.";
const BEFORE = "What you sent before may have come through.";

/**
 * Ask before something is done.
 *
 * @param {Object} form
 * @param {string} form.title
 * @param {Array<string>} form.says What it will do, in sentences.
 * @param {?string} form.consequence What is expected to follow, if that is known.
 * @param {?Element} form.inputs
 * @param {string} form.button What the button says that does it.
 * @param {boolean} form.danger Whether something is lost by it.
 * @param {function} form.act Does it: reads the inputs before it waits for anything, and gets a function `say(state, text,
 *   final)`, which returns whether the dialog is still open; after `final` words there is nothing left to do. What it
 *   throws is shown. If that is `unsure`, it may be done: then the inputs stay as they are for good.
 * @returns {Element} The dialog. Its `foresee(text)` says later what is expected to follow.
 */
export function ask({ title, says, consequence = null, inputs = null, button, danger = false, act }) {
  const answer = h("p", { class: "answer", role: "status", hidden: true });
  const cancel = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel");
  const confirm = h("button", { type: "submit", class: `button main${danger ? " danger" : ""}` }, button);
  let unsure = false;
  const say = (state, text, final = false) => {
    if (final) end();
    answer.hidden = false;
    answer.dataset.state = state;
    setText(answer, text);
    return answer.isConnected;
  };
  const end = () => {
    if (confirm.hidden) return;
    confirm.hidden = true;
    if (inputs) inputs.hidden = true;
    setText(cancel, "Close");
    cancel.focus();
  };
  const freeze = (frozen) => inputs?.querySelectorAll("input, select").forEach((field) => (field.disabled = frozen));
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    say("waiting", "Sending…");
    let focused = null;
    try {
      const acting = act(say);
      // What is sent again must be what was sent first.
      focused = document.activeElement;
      freeze(true);
      await acting;
      end();
    } catch (error) {
      say("refused", [error.message, error.unsure ? AGAIN : unsure ? BEFORE : ""].join(" ").trim());
      unsure ||= Boolean(error.unsure);
      freeze(unsure);
      confirm.disabled = false;
      // Where it was, unless the inputs could not be read: then it is at the one that is wrong.
      if (focused) (inputs?.contains(focused) && !unsure ? focused : confirm).focus();
    }
  };
  const expected = h("p", { class: "consequence", "aria-live": "polite", hidden: !consequence }, consequence ?? "");
  const heading = h("h2", { id: "dialog-title" }, title);
  const words = h("div", { class: "says", id: "dialog-says" }, says.map((text) => h("p", {}, text)), expected);
  const form = h("form", { method: "dialog", novalidate: true, onsubmit: submit }, heading, words, inputs, answer, h("div", { class: "dialog-end" }, cancel, confirm));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-says", onclose: () => dialog.remove() }, form);
  dialog.foresee = (text) => {
    expected.hidden = false;
    setText(expected, text);
  };
  document.body.append(dialog);
  dialog.showModal();
  (inputs?.querySelector("input, select") ?? (danger ? cancel : confirm)).focus();
  return dialog;
}

/** Close all dialogs without an answer. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.close();
    // Its event comes later; until then it would count as open.
    dialog.remove();
  }
}
