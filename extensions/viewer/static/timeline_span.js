// Spans of time: {began, ended}, in unix seconds.

const SHORTEST_S = 0.002;
const LEAST_ROOM_S = 0.2;

export function panned({ began, ended }, share) {
  const by = (ended - began) * share;
  return { began: began + by, ended: ended + by };
}

/** A span `factor` as long, in which `at` (by default the middle) stays where it is. */
export function zoomed({ began, ended }, factor, at = (began + ended) / 2) {
  const length = Math.max((ended - began) * factor, SHORTEST_S);
  const place = (at - began) / (ended - began);
  return { began: at - place * length, ended: at + (1 - place) * length };
}

export function wholeRun(data) {
  const room = Math.max((data.run_ended - data.run_began) * 0.01, LEAST_ROOM_S);
  return { began: data.run_began - room, ended: data.run_ended + room };
}

/** Round times for an axis of about `most` ticks: seconds after `began` of the run. */
export function axisTicks(span, runBegan, most) {
  const step = roundStep((span.ended - span.began) / most);
  const ticks = [];
  for (
    let index = Math.ceil((span.began - runBegan) / step);
    runBegan + index * step <= span.ended;
    index += 1
  ) {
    ticks.push(index * step);
  }
  return { step, ticks };
}

function roundStep(least) {
  const minutes = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];
  if (least > 30) {
    return minutes.find((step) => step >= least) ?? Math.ceil(least / 86400) * 86400;
  }
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}
