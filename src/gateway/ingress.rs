//! The way of one request: head, route, account, token, body, proof, verdict, permit, forward, answer.
//!
//! Read this from top to bottom, and [`plan`](super::plan) beside it, to know in which order things happen.

use std::convert::Infallible;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::{Body, Incoming};

use super::activity::Busy;
use super::events::Event;
use super::journey::{Journey, RunToEnd};
use super::outgoing::{self, Came, Peer};
use super::plan::{Go, Rejected, decide};
use super::reply::{self, Known, ReplyBody, VERDICT};
use super::service::{Enlisted, Gateway, Route, Worker};
use crate::claim::fields::{Ending, Fields};
use crate::claim::request_id::request_id;
use crate::code::Code;
use crate::fence::name::AccountName;
use crate::fence::token::Claim;
use crate::forward::body::discard;
use crate::forward::exchange::{self, Answer, AnswerBody, Bounds, Failure, Outgoing};
use crate::telemetry::Verdict;

/// Serves one request. Dropped before the permit, the request is withdrawn; after it, the send runs to its end.
pub(super) async fn serve(
    worker: Arc<Worker>,
    peer: Peer,
    request: Request<Incoming>,
    busy: Arc<Busy>,
) -> Result<Response<ReplyBody>, Infallible> {
    let gateway = &worker.gateway;
    let (parts, mut incoming) = request.into_parts();
    let fields = Fields::of(&parts.headers);
    let (ending, expects) = (fields.ending(), fields.expect.value.is_some());
    let enlisted = worker.enlist(request_id(&fields));
    let send = Arc::clone(&enlisted.send);
    let mut journey = Journey::begin(Arc::clone(gateway));
    let planned = match decide(gateway, &parts, &fields, !incoming.is_end_stream()) {
        Ok(mut plan) => plan.run(&worker, &parts, &fields, &mut incoming, &mut journey, &send).await,
        Err(rejected) => Err(rejected),
    };
    let mut reply = match planned {
        Ok(go) => {
            let (landing, sending) = take_off(&worker, peer, parts, ending, incoming, go, &journey, enlisted);
            drop(journey);
            landing.reply(gateway, &send.request_id, sending.await)
        }
        Err(rejected) => {
            journey.verdict(Verdict::Refused(rejected.code));
            let mut reply = refuse(gateway, &rejected, &send.request_id);
            // Whoever waits for 100 Continue may send its body now or not: nobody can tell where a next request begins.
            if expects && !incoming.is_end_stream() {
                reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            // The caller may still be sending: what it sends is read and dropped, so that it can read the refusal.
            discard(incoming, Arc::clone(&busy));
            reply
        }
    };
    if gateway.status.is_stopping() {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    reply.body_mut().watch(busy);
    Ok(reply)
}

#[allow(clippy::too_many_arguments, reason = "the parts of one request, each used once")]
/// Makes the request that the sender gets, and the future that sends it: it runs to its end, whether or not the caller
/// waits for it.
fn take_off(
    worker: &Worker,
    peer: Peer,
    parts: Parts,
    ending: Ending,
    incoming: Incoming,
    go: Go,
    journey: &Journey,
    enlisted: Enlisted,
) -> (Landing, RunToEnd<impl Future<Output = Result<Answer, Failure>> + Send + 'static + use<>>) {
    let Go { allowed, claim, route, room, mut received, target, host } = go;
    let Parts { method, mut headers, version, .. } = parts;
    let config = &route.config;
    let flight = journey.take_off(room, allowed.is_judged(), std::mem::take(&mut received.budget));
    let came = Came { peer, host: host.as_deref(), version };
    let asked = came.host.filter(|_| config.preserve_host).and_then(|host| HeaderValue::from_str(host).ok());
    let choice = route.targets.choose(|| (allowed.account(), worker.gateway.registry.clock.now()));
    let preserves_host = asked.is_some();
    let authority = asked.unwrap_or_else(|| choice.target.authority.clone());
    outgoing::to_sender(&mut headers, ending, &allowed.sender(), &came, authority, &enlisted.send.request_id);
    let (body, progress) = received.into_body(incoming, &route.body_bounds);
    if body.is_end_stream() && [Method::POST, Method::PUT, Method::PATCH].contains(&method) {
        // Nothing is written of an empty body, and many senders want to be told.
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    let bounds = Bounds {
        connect: config.connect_timeout,
        total: config.upstream_timeout,
        idle: config.upstream_idle_timeout,
        answer_buffer: config.answer_buffer,
    };
    let memory = route.memory.clone();
    let outgoing = Outgoing { request, progress, choice, preserves_host, bounds, memory };
    let landing = Landing { verdict: allowed.header(), account: allowed.account(), claim, route };
    let ended = move |failure: Option<Code>| {
        flight.land(failure);
        drop(enlisted);
    };
    (landing, RunToEnd::new(exchange::send(&worker.pool, outgoing, allowed, ended)))
}

/// What is left to do once the sender has answered, or not.
struct Landing {
    verdict: HeaderValue,
    account: HeaderValue,
    claim: Option<Claim>,
    route: Arc<Route>,
}

impl Landing {
    fn reply(
        self,
        gateway: &Gateway,
        request_id: &HeaderValue,
        answer: Result<Answer, Failure>,
    ) -> Response<ReplyBody> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(Failure { code, detail }) => {
                let account = self.account.to_str().ok();
                gateway.registry.tell(|| refusal(account, code, request_id));
                let form = self.route.config.refusal.as_ref();
                let known = Known { account, claim: self.claim.as_ref(), form, ..Known::default() };
                return reply::problem(code, &detail, request_id, &known);
            }
        };
        let mut reply = Response::new(match answer.body {
            AnswerBody::Whole(frames) => ReplyBody::frames(frames),
            AnswerBody::Partial(frames, rest) => {
                ReplyBody::partial(frames, rest, outgoing::length(&answer.head.headers))
            }
        });
        reply.body_mut().hold(answer.kept);
        *reply.status_mut() = answer.head.status;
        *reply.headers_mut() = answer.head.headers;
        outgoing::to_caller(reply.headers_mut(), request_id);
        reply.headers_mut().insert(VERDICT, self.verdict);
        reply
    }
}

fn refusal(account: Option<&str>, code: Code, request_id: &HeaderValue) -> Event {
    Event::Refusal {
        account: account.and_then(AccountName::new),
        code,
        request_id: request_id.to_str().unwrap_or("-").to_owned(),
    }
}

fn refuse(gateway: &Gateway, rejected: &Rejected<'_>, request_id: &HeaderValue) -> Response<ReplyBody> {
    let account = rejected.account.as_deref();
    if account.is_some() {
        gateway.registry.reject(rejected.entry.as_deref(), rejected.code);
    }
    gateway.registry.tell(|| refusal(account, rejected.code, request_id));
    let known = Known {
        account,
        claim: rejected.claim.as_ref(),
        current: rejected.current.as_deref(),
        allow: rejected.allow.as_deref(),
        form: rejected.form,
    };
    reply::problem(rejected.code, &rejected.detail, request_id, &known)
}
