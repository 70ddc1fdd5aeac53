// Which page the address asks for. It is in the fragment, so that every other address can be relative.

/** The addresses of the pages. */
export const links = {
  runs: () => "#/",
  run: (run, part = "") => `#/run/${encodeURIComponent(run)}${part && `?part=${part}`}`,
  trial: (run, trial) => `#/run/${encodeURIComponent(run)}/trial/${encodeURIComponent(trial)}`,
  compare: (runs) => `#/compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`,
};

/** Read an address: {page, run, trial, runs, part}. */
export function route(fragment) {
  const [path, query = ""] = fragment.replace(/^#/, "").split("?");
  const words = new URLSearchParams(query);
  const steps = path.split("/").filter(Boolean).map(decoded);
  const part = words.get("part") ?? "";
  if (steps.length === 0) return { page: "runs" };
  if (steps[0] === "compare") return { page: "compare", runs: words.getAll("run") };
  if (steps[0] === "run" && steps.length === 2) return { page: "run", run: steps[1], part };
  if (steps[0] === "run" && steps[2] === "trial" && steps.length === 4) return { page: "trial", run: steps[1], trial: steps[3] };
  return { page: "unknown" };
}

function decoded(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}
