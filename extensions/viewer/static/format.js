// Numbers and times as text. What was not recorded is a dash, never a zero.

export const NOT_RECORDED = "–";

const COUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SMALL_UNITS = ["B", "kB", "MB", "GB", "TB"];

function isMissing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

export function formatCount(value) {
  return isMissing(value) ? NOT_RECORDED : COUNT.format(value);
}

/** At most four significant digits: 0.06667, 12.34, 1,235, 2.1e-7. */
export function formatNumber(value) {
  if (isMissing(value)) {
    return NOT_RECORDED;
  }
  const size = Math.abs(value);
  if (size >= 1000) {
    return COUNT.format(value);
  }
  if (size !== 0 && size < 0.001) {
    return value.toExponential(1).replace(".0e", "e").replace("-", "−").replace("e-", "e−");
  }
  return withMinus(String(Number(value.toPrecision(4))));
}

function withMinus(text) {
  return text.replace(/^-/, "−");
}

export function formatShare(value) {
  if (isMissing(value)) {
    return NOT_RECORDED;
  }
  const isNearEnd = (value > 0 && value < 0.01) || (value < 1 && value > 0.99);
  return value.toFixed(isNearEnd ? 3 : 2);
}

export function formatPercent(value) {
  if (isMissing(value)) {
    return NOT_RECORDED;
  }
  if (value > 0 && value < 0.001) {
    return "< 0.1 %";
  }
  return `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

export function formatSeconds(value) {
  if (isMissing(value)) {
    return NOT_RECORDED;
  }
  if (value < 1) {
    return `${Number((value * 1000).toPrecision(3))} ms`;
  }
  if (value < 60) {
    return `${Number(value.toPrecision(3))} s`;
  }
  return formatClock(value);
}

/** 61.5 as "1:01", 3700 as "1:01:40". */
export function formatClock(seconds) {
  const whole = Math.floor(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = String(Math.floor(whole / 60) % 60);
  const rest = String(whole % 60).padStart(2, "0");
  return hours > 0 ? `${hours}:${minutes.padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function formatBytes(value) {
  if (isMissing(value)) {
    return NOT_RECORDED;
  }
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < SMALL_UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${Number(size.toPrecision(3))} ${SMALL_UNITS[unit]}`;
}

/** Unix seconds as "2026-11-26 09:05:26", in the reader's own zone. */
export function formatTime(seconds) {
  if (isMissing(seconds)) {
    return NOT_RECORDED;
  }
  const at = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const FORMATS = {
  share: formatShare,
  number: formatNumber,
  count: formatCount,
  seconds: formatSeconds,
  bytes: formatBytes,
};

export function formatAs(format, value) {
  return (FORMATS[format] ?? formatNumber)(value);
}

export function plural(count, one, many = `${one}s`) {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** "v41", or a dash. */
export function versionText(version) {
  return version === null || version === undefined ? NOT_RECORDED : `v${version}`;
}
