// Numbers, times and values as people read them. Nothing here knows the page.

const NONE = "–";
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** 4 significant digits; very large and very small ones as powers. Whole numbers have all their digits. */
export function number(value, digits = 4) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  if (Number.isSafeInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

/** A metric: always the same number of places, so that a column of them is aligned. */
export function metric(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(3).replace("e+", "e");
  return value.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : 4);
}

/** A whole number, in groups of three. */
export function count(value) {
  return typeof value === "number" ? value.toLocaleString("en-US") : NONE;
}

export function percent(share) {
  return typeof share === "number" ? `${Math.round(100 * share)} %` : NONE;
}

export function bytes(size) {
  if (typeof size !== "number") return NONE;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let index = 0;
  for (; size >= 1000 && index < units.length - 1; index += 1) size /= 1000;
  return `${index && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[index]}`;
}

/** Seconds in words: "4.2 s", "3 min 12 s", "2 h 05 min". */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)} min ${two(whole % MINUTE)} s`;
  const minutes = Math.round(whole / MINUTE);
  if (whole < DAY) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.round(whole / HOUR);
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

/** Seconds of a run, as on a stopwatch: "0:31", "1:02:07". */
export function stopwatch(seconds) {
  if (typeof seconds !== "number") return NONE;
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / HOUR), Math.floor((whole % HOUR) / MINUTE), whole % MINUTE];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** A wall clock's time here: "14:32", with the day where that is not today. */
export function clock(seconds, withSeconds = false) {
  if (typeof seconds !== "number") return NONE;
  const when = new Date(seconds * 1000);
  const time = `${two(when.getHours())}:${two(when.getMinutes())}${withSeconds ? `:${two(when.getSeconds())}` : ""}`;
  return when.toDateString() === new Date().toDateString() ? time : `${day(when)}, ${time}`;
}

function day(when) {
  const month = when.toLocaleDateString("en-GB", { month: "short" });
  const year = when.getFullYear() === new Date().getFullYear() ? "" : ` ${when.getFullYear()}`;
  return `${when.getDate()} ${month}${year}`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

/** The value of a param, on one line. */
export function param(value) {
  if (typeof value === "number") return number(value, 6);
  if (typeof value === "string") return value;
  if (value === undefined) return NONE;
  return JSON.stringify(value);
}

/** In which unit an axis up to so many seconds is read best: {seconds, suffix}. */
export function timeUnit(most) {
  if (most < 5 * MINUTE) return { seconds: 1, suffix: " s" };
  return most < 5 * HOUR ? { seconds: MINUTE, suffix: " min" } : { seconds: HOUR, suffix: " h" };
}

/** "1 trial", "3 trials". */
export function plural(amount, word) {
  return `${count(amount)} ${word}${amount === 1 ? "" : "s"}`;
}

/** "a, b and c". */
export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
