// Dialogs: a title, what will happen in words, inputs, and what came of it.

import { h, setText } from "./dom.js";

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
 * @param {function} form.act Does it: gets a function `say(state, text)`, which returns whether the dialog is still
 *   open; what it throws is shown.
 * @returns {Element} The dialog. Its `foresee(text)` says later what is expected to follow.
 */
export function ask({ title, says, consequence = null, inputs = null, button, danger = false, act }) {
  const answer = h("p", { class: "answer", role: "status", hidden: true });
  const cancel = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel");
  const confirm = h("button", { type: "submit", class: `button main${danger ? " danger" : ""}` }, button);
  const say = (state, text) => {
    answer.hidden = false;
    answer.dataset.state = state;
    setText(answer, text);
    return answer.isConnected;
  };
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    say("waiting", "Sending…");
    try {
      await act(say);
      confirm.hidden = true;
      if (inputs) inputs.hidden = true;
      setText(cancel, "Close");
      cancel.focus();
    } catch (error) {
      say("refused", error.message);
      confirm.disabled = false;
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
