//! The way of one request: head, route, account, token, body, proof, verdict, permit, forward, answer.
//!
//! Read this from top to bottom, and [`plan`](super::plan) beside it, to know in which order things happen.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;

use super::activity::Busy;
use super::allowed::Allowed;
use super::events::Event;
use super::journey::{Flight, Journey, RunToEnd};
use super::outgoing::{self, Came};
use super::plan::{Go, Rejected, decide};
use super::reply::{self, Known, REQUEST_ID, ReplyBody, VERDICT};
use super::service::{Enlisted, Gateway, Worker};
use crate::code::Code;
use crate::fence::name::AccountName;
use crate::fence::token::Claim;
use crate::forward::body::discard;
use crate::forward::exchange::{self, AnswerBody, Bounds, Failure, Outgoing};
use crate::forward::pool::Pool;
use crate::telemetry::Verdict;

/// Serves one request. Dropped before the permit, the request is withdrawn; after it, the send runs to its end.
pub(super) async fn serve(
    worker: Arc<Worker>,
    peer: IpAddr,
    request: Request<Incoming>,
    busy: Arc<Busy>,
) -> Response<ReplyBody> {
    let (parts, incoming) = request.into_parts();
    let request_id = request_id(&parts);
    let mut reply = travel(&worker, peer, parts, incoming, request_id).await;
    if worker.gateway.status.is_stopping() {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    reply.body_mut().busy = Some(busy);
    reply
}

/// Kept if it is fit to be a log field, else made.
fn request_id(parts: &Parts) -> HeaderValue {
    let mut given = parts.headers.get_all(REQUEST_ID).iter();
    if let (Some(id), None) = (given.next(), given.next()) {
        let fits = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
        if (1..=128).contains(&id.len()) && id.as_bytes().iter().all(fits) {
            return id.clone();
        }
    }
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let id = uuid::Uuid::now_v7();
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).unwrap_or(HeaderValue::from_static("-"))
}

async fn travel(
    worker: &Arc<Worker>,
    peer: IpAddr,
    parts: Parts,
    mut incoming: Incoming,
    request_id: HeaderValue,
) -> Response<ReplyBody> {
    let gateway = &worker.gateway;
    let mut journey = Journey::begin(Arc::clone(gateway));
    let enlisted = worker.enlist(request_id.clone());
    let planned = match decide(gateway, &parts) {
        Ok(plan) => plan.run(gateway, &parts, &mut incoming, &mut journey, &enlisted.send).await,
        Err(rejected) => Err(rejected),
    };
    match planned {
        Ok(go) => {
            let flying = take_off(worker, peer, parts, incoming, go, &journey, enlisted);
            drop(journey);
            // From here on it runs to its end, whether or not the caller waits for it.
            RunToEnd::new(flying).await
        }
        Err(rejected) => {
            // The caller may still be sending: what it sends is read and dropped, so that it can read the refusal. One
            // that waits for 100 Continue is not sending.
            if !parts.headers.contains_key(header::EXPECT) {
                discard(incoming);
            }
            journey.verdict(Verdict::Refused(rejected.code));
            refuse(gateway, &rejected, &request_id)
        }
    }
}

/// Makes the request that the sender gets, and the future that sends it.
fn take_off(
    worker: &Worker,
    peer: IpAddr,
    parts: Parts,
    incoming: Incoming,
    go: Go,
    journey: &Journey,
    enlisted: Enlisted,
) -> impl Future<Output = Response<ReplyBody>> + Send + 'static + use<> {
    let Go { allowed, claim, route, room, mut received, target, host } = go;
    let Parts { method, mut headers, version, .. } = parts;
    let config = &route.config;
    let flight = journey.take_off(room, allowed.is_judged(), std::mem::take(&mut received.budget));
    let came = Came { peer, host: host.as_deref(), version };
    let asked = came.host.filter(|_| config.preserve_host).and_then(|host| HeaderValue::from_str(host).ok());
    let authority = asked.unwrap_or_else(|| route.authority.clone());
    outgoing::to_sender(&mut headers, &allowed.sender(), &came, authority, &enlisted.send.request_id);
    let (body, progress) = received.into_body(incoming, &route.body_bounds);
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
    let outgoing = Outgoing { request, progress, target: Arc::clone(&route.target), bounds };
    fly(Arc::clone(&worker.pool), outgoing, allowed, claim, flight, enlisted)
}

/// Sends, and makes the reply of the answer.
async fn fly(
    pool: Arc<Pool>,
    outgoing: Outgoing,
    allowed: Allowed,
    claim: Option<Claim>,
    flight: Flight,
    enlisted: Enlisted,
) -> Response<ReplyBody> {
    let gateway = flight.gateway();
    let request_id = enlisted.send.request_id.clone();
    let (verdict, account) = (allowed.header(), allowed.account());
    let bodiless = outgoing.request.method() == Method::HEAD;
    let ended = move |failure: Option<Code>| {
        flight.land(failure);
        drop(enlisted);
    };
    let answer = match exchange::send(&pool, outgoing, allowed, ended).await {
        Ok(answer) => answer,
        Err(Failure { code, detail }) => {
            gateway.registry.tell(|| refusal(None, code, &request_id));
            let known = Known { account: account.to_str().ok(), claim: claim.as_ref(), ..Known::default() };
            return reply::problem(code, &detail, &request_id, &known);
        }
    };
    let mut reply = Response::new(match answer.body {
        AnswerBody::Whole(frames) => ReplyBody::frames(frames),
        AnswerBody::Partial(frames, rest) => {
            ReplyBody::partial(frames, rest, outgoing::length(&answer.head.headers))
        }
    });
    *reply.status_mut() = answer.head.status;
    *reply.headers_mut() = answer.head.headers;
    outgoing::to_caller(reply.headers_mut(), &request_id, bodiless);
    reply.headers_mut().insert(VERDICT, verdict);
    reply
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
    if let Some(account) = account {
        gateway.registry.reject(gateway.registry.get(account).as_deref(), rejected.code);
    }
    gateway.registry.tell(|| refusal(account, rejected.code, request_id));
    let known = Known {
        account,
        claim: rejected.claim.as_ref(),
        current: rejected.current.as_deref(),
        allow: rejected.allow.as_deref(),
    };
    reply::problem(rejected.code, &rejected.detail, request_id, &known)
}
