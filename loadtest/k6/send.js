// The scenarios of run.sh for people who use k6: steady sends, a storm of stale ones, sends while their account is handed over.
//
//   python3 loadtest/stage.py k6 run loadtest/k6/send.js
//
// stage.py gives it what it needs in the environment; against a gateway of your own, set the variables that stage.py lists
// (LOAD_ACCOUNTS=0 with LOAD_ACCOUNT=NAME for one account). SECONDS_EACH (10), VUS (20) and P99_MS (250) size it. It fails if a
// scenario has a verdict that it must not have, or is slower than that.

import http from 'k6/http';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

const seconds = Number(__ENV.SECONDS_EACH || 10);
const vus = Number(__ENV.VUS || 20);
const p99 = Number(__ENV.P99_MS || 250);
const accounts = Number(__ENV.LOAD_ACCOUNTS || 0);

const allowed = {
  steady: ['admitted'],
  storm: ['stale_token'],
  handover: ['admitted', 'stale_token', 'not_holder', 'no_holder', 'superseded'],
};
const names = Object.keys(allowed);

const verdicts = new Counter('verdicts');
const wrong = new Counter('wrong_verdicts');

const thresholds = { wrong_verdicts: ['count==0'] };
for (const name of names) {
  thresholds[`http_req_duration{scenario:${name}}`] = [`p(99)<${p99}`];
  // Each verdict that may come is shown; the first one has to come.
  allowed[name].forEach((verdict, index) => {
    thresholds[`verdicts{scenario:${name},verdict:${verdict}}`] = [index === 0 ? 'count>0' : 'count>=0'];
  });
}

export const options = {
  thresholds,
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
  scenarios: Object.fromEntries(names.map((name, index) => [name, {
    executor: 'constant-vus',
    exec: name,
    vus,
    duration: `${seconds}s`,
    startTime: `${index * (seconds + 1)}s`,
    gracefulStop: '5s',
  }])),
};

const holder = { seq: __ENV.LOAD_HOLDER_SEQ, session: __ENV.LOAD_HOLDER_SESSION };
const former = { seq: __ENV.LOAD_STALE_SEQ, session: __ENV.LOAD_STALE_SESSION };

function anyAccount() {
  if (accounts === 0) return __ENV.LOAD_ACCOUNT;
  return `wxid_${String(Math.floor(Math.random() * accounts)).padStart(7, '0')}`;
}

function send(account, token) {
  // The URL without its account, so that k6 keeps one set of figures and not one for each account.
  const url = http.url`${__ENV.LOAD_URL}/wx/${account}/send`;
  const answer = http.post(url, '{"to":"wxid_2","text":"hello"}', {
    headers: { 'Content-Type': 'application/json', 'X-Fencing-Seq': token.seq, 'X-Fencing-Session': token.session },
  });
  const verdict = answer.headers['X-Fencing-Verdict'] || `none (status ${answer.status}, ${answer.error})`;
  verdicts.add(1, { verdict });
  if (!allowed[exec.scenario.name].includes(verdict)) wrong.add(1, { verdict });
}

export function steady() {
  send(anyAccount(), holder);
}

export function storm() {
  send(anyAccount(), former);
}

/** Both instances believe that they hold the account, and one of them does. */
export function handover() {
  send(__ENV.LOAD_HANDOVER_ACCOUNT, exec.vu.idInTest % 2 === 0 ? holder : former);
}
