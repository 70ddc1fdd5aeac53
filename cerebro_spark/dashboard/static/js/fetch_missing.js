// Brings what was loaded of a run up to date, by asking for what is new only.

/**
 * Ask until a part of a run has all that the stream spoke of.
 *
 * @param {RunStore} store The run. It is told when the part changed.
 * @param {Object} part {version, take(answer), loaded, problem}: the last two are set here, and so is its version.
 * @param {string} topic What the store calls the part.
 * @param {function} ask Gets {since, generation}, which are null at first, and returns a promise of the answer.
 */
export async function fetchMissing(store, part, topic, ask) {
  do {
    const { generation } = store;
    const before = part.version;
    try {
      const answer = await ask({ since: before || null, generation: before ? generation : null });
      if (store.closed || generation !== store.generation) return;
      part.take(answer);
      part.version = Math.max(part.version, answer.version);
      part.loaded = true;
      part.problem = null;
    } catch (error) {
      part.problem = error;
    }
    store.touch(topic);
    if (part.problem || part.version === before) return;
  } while (part.version < store.version);
}
