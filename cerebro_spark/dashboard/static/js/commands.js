// What a person can tell a run: the dialog of each command, and the answer when it comes.

import { send, wonder } from "./api.js";
import { WORDS, whatIf } from "./command_words.js";
import { ask } from "./dialog.js";
import { note } from "./notes.js";

const PATIENCE = 15_000;
// What the forecast can be asked about before anything else is known of the command.
const FORESEEN = new Set(["stop_trial", "resume_trial", "remove_worker"]);

/** A new id of a command. `crypto.randomUUID` is not there on pages that came over plain http from another machine. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Commands {
  /**
   * @param {RunStore} store The run.
   * @param {Object} server What the server says of itself: in read-only mode it knows no verbs.
   */
  constructor(store, server) {
    this.store = store;
    this.verbs = new Set(server.verbs);
    this.waiting = new Map();
    this.ends = [store.on(["commands"], () => this.look())];
  }

  /** Whether there are any commands. */
  get allowed() {
    return this.verbs.size > 0;
  }

  can(verb) {
    return this.verbs.has(verb) && !this.store.over;
  }

  /** Open the dialog of a command. `about` is {trial} or {worker}, where it is about one. */
  open(verb, about = {}) {
    const { fields, ...form } = WORDS[verb](about, this.store);
    // One for the dialog, however often its button is pressed: a run obeys a command once.
    const id = newId();
    const dialog = ask({ ...form, inputs: fields?.node ?? null, act: (say) => this.send({ id, verb, ...form.command, ...fields?.read() }, say) });
    if (!form.consequence && FORESEEN.has(verb) && this.store.forecast?.done_at) this.foresee({ verb, ...form.command }, dialog);
  }

  /** Ask what would follow from a command, and say it in its dialog when it is known. */
  foresee(command, dialog) {
    const key = `${command.verb} ${command.trial ?? command.worker}`;
    const end = this.store.on(["forecast"], () => {
      const text = whatIf(this.store, key);
      if (text) dialog.foresee(text);
    });
    dialog.addEventListener("close", end);
    // Without an answer the dialog says what it says anyway.
    wonder(this.store.run, command).catch(() => end());
  }

  async send(command, say) {
    const sent = await send(this.store.run, command).catch((error) => {
      if (error.unsure) this.expectAnswer(command.id, say);
      throw error;
    });
    const silent = setTimeout(() => say("waiting", this.whySilent()), PATIENCE);
    this.store.commands.set(sent.id, { ...sent, ...this.store.commands.get(sent.id) });
    say("waiting", "Sent. The run's answer comes as soon as its driver has looked into its mailbox, about once a second.");
    this.expectAnswer(sent.id, say, silent);
  }

  /** Tell the run's answer to a command when it comes, or came already. */
  expectAnswer(id, say, silent = null) {
    clearTimeout(this.waiting.get(id)?.silent);
    this.waiting.set(id, { say, silent });
    this.store.touch("commands");
  }

  whySilent() {
    const { driver } = this.store.summary ?? {};
    if (driver === "alive") return "There is no answer yet. You can close this: it is shown when it comes.";
    return "There is no answer, and the run's driver gives no sign of life. The command waits in the mailbox until the driver is back.";
  }

  /** See which commands were answered. */
  look() {
    for (const [id, { say, silent }] of this.waiting) {
      const command = this.store.commands.get(id);
      if (command?.state !== "done" && command?.state !== "refused") continue;
      clearTimeout(silent);
      this.waiting.delete(id);
      this.tell(command, say);
    }
  }

  tell(command, say) {
    const done = command.state === "done";
    const open = say(command.state, done ? command.reason || "Done." : `Refused: ${command.reason}`, true);
    if (!open) note(`${command.words}: ${command.state}`, command.reason, command.state);
  }

  close() {
    this.ends.forEach((end) => end());
    for (const { silent } of this.waiting.values()) clearTimeout(silent);
  }
}
