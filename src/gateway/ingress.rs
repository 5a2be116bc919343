//! The way of one request: head, route, account, token, body, proof, verdict, permit, forward, answer.
//!
//! Read this from top to bottom to know in which order things happen. Each step is one call into another file.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;

use super::activity::Busy;
use super::admission::{Judge, Refused, Unjudged};
use super::body::{self, Received};
use super::claim;
use super::entry::Send;
use super::events::Event;
use super::head::{self, Head, Refusal};
use super::journey::{Flight, Journey, RunToEnd};
use super::outgoing::{self, Came, Sender};
use super::reply::{self, Known, REQUEST_ID, ReplyBody, VERDICT};
use super::service::{Enlisted, Gateway, Room, Route, Worker};
use crate::code::Code;
use crate::config::{Captures, Mode};
use crate::fence::token::Claim;
use crate::fence::view::Holder;
use crate::forward::Authority;
use crate::forward::exchange::{self, AnswerBody, Bounds, Failure, Outgoing};
use crate::telemetry::Verdict;

/// A refusal, with what is told beside its code.
struct Rejected<'a> {
    code: Code,
    detail: Cow<'static, str>,
    account: Option<Cow<'a, str>>,
    claim: Option<Claim>,
    current: Option<Arc<Holder>>,
    allow: Option<String>,
}

impl From<Refusal> for Rejected<'_> {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, detail } = refusal;
        Self { code, detail, account: None, claim: None, current: None, allow: None }
    }
}

impl From<Code> for Rejected<'_> {
    fn from(code: Code) -> Self {
        Refusal::new(code, "").into()
    }
}

/// Serves one request. Dropping the future before the permit withdraws the request; after it, the send runs to its end.
pub(super) async fn serve(
    worker: Arc<Worker>,
    peer: IpAddr,
    request: Request<Incoming>,
    busy: Arc<Busy>,
) -> Response<ReplyBody> {
    let (parts, incoming) = request.into_parts();
    let request_id = request_id(&parts);
    let mut journey = Journey::begin(Arc::clone(&worker.gateway));
    let send = worker.enlist(request_id.clone());
    let mut reply = travel(&worker, peer, parts, incoming, &request_id, &mut journey, send).await;
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
    request_id: &HeaderValue,
    journey: &mut Journey,
    send: Enlisted,
) -> Response<ReplyBody> {
    let gateway = &worker.gateway;
    let expects = parts.headers.contains_key(header::EXPECT);
    let judged = match decide(gateway, &parts) {
        Ok(plan) => plan.run(gateway, &parts, &mut incoming, journey, &send.send).await,
        Err(rejected) => Err(rejected),
    };
    let go = match judged {
        Ok(go) => go,
        Err(rejected) => {
            // The caller may still be sending: what it sends is read and dropped, so that it can read the refusal.
            // One that waits for 100 Continue is not sending.
            if !expects {
                crate::forward::body::discard(incoming);
            }
            return refuse(gateway, rejected, request_id, journey);
        }
    };
    let Go { authority, route, room, mut received, target, came_host } = go;
    let came = Came { peer, host: came_host.as_deref(), version: parts.version };
    let flight = journey.take_off(room, authority.is_judged(), std::mem::take(&mut received.budget));
    let outgoing = prepare(
        &route,
        parts.method,
        parts.headers,
        target,
        received,
        incoming,
        &authority,
        &came,
        request_id,
    );
    let head_only = outgoing.request.method() == http::Method::HEAD;
    let verdict = authority.verdict();
    let pool = Arc::clone(&worker.pool);
    // From here on it runs to its end, whether or not the caller waits for it.
    let id = request_id.clone();
    let forward =
        async move { forward(pool, outgoing, authority, flight, send, verdict, head_only, id).await };
    RunToEnd::new(forward).await
}

/// What the head alone decides.
struct Plan<'a> {
    head: Head<'a>,
    route: Arc<Route>,
    captures: Captures<'a>,
    account: Cow<'a, str>,
    claim: Option<Claim>,
}

fn decide<'a>(gateway: &'a Gateway, parts: &'a Parts) -> Result<Plan<'a>, Rejected<'a>> {
    let head = head::check(parts, gateway.limits.max_header_bytes)?;
    let (route, captures) = gateway.route(head.path).ok_or(Code::NoRoute)?;
    let config = &route.config;
    if let Some(methods) = &config.methods
        && !methods.iter().any(|method| method == parts.method.as_str())
    {
        let allow = Some(methods.join(", "));
        return Err(Rejected { allow, ..Code::MethodNotAllowed.into() });
    }
    if config.mode == Mode::Deny {
        return Err(Code::Denied.into());
    }
    let account = claim::account(&config.account, &captures, &head, &parts.headers)?;
    let claim = match claim::token(&parts.headers) {
        Ok(claim) => Some(claim),
        Err(refusal) if config.mode == Mode::Enforce || refusal.code == Code::MalformedToken => {
            return Err(Rejected { account: Some(account), ..refusal.into() });
        }
        Err(_) => None,
    };
    if body::announced(&parts.headers).is_some_and(|length| length > config.max_body) {
        let most = config.max_body;
        let refusal = Refusal::new(Code::BodyTooLarge, format!("the body may have at most {most} bytes"));
        return Err(Rejected { account: Some(account), claim, ..refusal.into() });
    }
    Ok(Plan { head, route: Arc::clone(route), captures, account, claim })
}

/// What is allowed to be forwarded.
enum Allowed {
    Judged(super::admission::Admission),
    Unjudged { place: Unjudged, account: String, would: Option<&'static str> },
}

impl Allowed {
    fn is_judged(&self) -> bool {
        matches!(self, Self::Judged(_))
    }

    fn sender(&self) -> Sender<'_> {
        match self {
            Self::Judged(admission) => Sender::Holder(&admission.identity),
            Self::Unjudged { account, .. } => Sender::Unjudged(account),
        }
    }

    fn verdict(&self) -> HeaderValue {
        match self {
            Self::Judged(_) => HeaderValue::from_static("admitted"),
            Self::Unjudged { would: None, .. } => HeaderValue::from_static("passed"),
            Self::Unjudged { would: Some(code), .. } => {
                HeaderValue::from_str(&format!("shadow; would={code}"))
                    .unwrap_or(HeaderValue::from_static("shadow"))
            }
        }
    }
}

impl Authority for Allowed {
    fn begin(&self) -> Result<(), Code> {
        match self {
            Self::Judged(admission) => admission.begin(),
            Self::Unjudged { place, .. } => place.begin(),
        }
    }

    fn unbegin(&self) {
        match self {
            Self::Judged(admission) => admission.unbegin(),
            Self::Unjudged { place, .. } => place.unbegin(),
        }
    }

    fn poll_revoked(&self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Code> {
        match self {
            Self::Judged(admission) => admission.poll_revoked(cx),
            Self::Unjudged { place, .. } => place.poll_revoked(cx),
        }
    }
}

struct Go {
    authority: Allowed,
    route: Arc<Route>,
    room: Room,
    received: Received,
    target: http::Uri,
    came_host: Option<String>,
}

impl<'a> Plan<'a> {
    /// Body first, then proof, verdict and permit.
    async fn run(
        self,
        gateway: &Arc<Gateway>,
        parts: &Parts,
        incoming: &mut Incoming,
        journey: &mut Journey,
        send: &Arc<Send>,
    ) -> Result<Go, Rejected<'a>> {
        let Self { head, route, captures, account, claim } = self;
        let account_for = |refused: Refused| Rejected {
            code: refused.code,
            detail: "".into(),
            account: Some(account.clone()),
            claim: claim.clone(),
            current: refused.current,
            allow: None,
        };
        let enforced = claim.as_ref().filter(|_| route.config.mode == Mode::Enforce);
        let judge = enforced.map(|claim| Judge {
            registry: &gateway.registry,
            rules: &gateway.rules,
            account: &account,
            claim,
            send,
            patience: route.config.drain_timeout,
        });
        if let Some(judge) = judge.as_ref().filter(|_| head.expects_continue) {
            until_shutdown(send, judge.preview()).await.map_err(&account_for)?;
        }
        let receive = body::receive(gateway, &route, &account, incoming);
        let received = until_shutdown(send, receive).await.map_err(&account_for)?;
        journey.body_is_in();
        let authority = match &judge {
            Some(judge) => {
                let admission = until_shutdown(send, judge.admit()).await.map_err(&account_for)?;
                Allowed::Judged(admission)
            }
            None => unjudged(gateway, &route, &account, claim.as_ref(), send)
                .map_err(|c| account_for(c.into()))?,
        };
        let room = gateway.room(&route).ok_or_else(|| account_for(Code::Overloaded.into()))?;
        journey.verdict(match (&authority, route.config.mode) {
            (Allowed::Judged(_), _) => Verdict::Admitted,
            (Allowed::Unjudged { .. }, Mode::Shadow) => Verdict::Shadow,
            (Allowed::Unjudged { .. }, Mode::Enforce | Mode::Pass | Mode::Deny) => Verdict::Passed,
        });
        let target = target(&route, &captures, &parts.uri).ok_or(Code::MalformedPath)?;
        let came_host = head.host.map(str::to_owned);
        Ok(Go { authority, route, room, received, target, came_host })
    }
}

/// Waits, unless the process has to end first: then nothing was sent.
async fn until_shutdown<T>(
    send: &Send,
    work: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Refused> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(done) = work.as_mut().poll(cx) {
            return std::task::Poll::Ready(done);
        }
        send.poll_revoked(cx).map(|_| Err(Code::ShuttingDown.into()))
    })
    .await
}

/// Shadow and pass: everything is forwarded; in shadow mode the verdict is counted beside, by the view as it is.
fn unjudged(
    gateway: &Gateway,
    route: &Route,
    account: &str,
    claim: Option<&Claim>,
    send: &Arc<Send>,
) -> Result<Allowed, Code> {
    let entry = gateway.registry.get(account);
    let would = (route.config.mode == Mode::Shadow).then(|| {
        let code = match (claim, &entry) {
            (None, _) => Some(Code::MissingToken),
            (Some(_), None) => Some(Code::UnknownAccount),
            (Some(claim), Some(entry)) => entry.state().account.preview(claim, None).and_then(Result::err),
        };
        if let Some(code) = code {
            gateway.registry.reject_shadow(entry.as_deref(), code);
        }
        code.map_or("admitted", Code::as_str)
    });
    let most = gateway.rules.most_in_flight_per_account;
    let place = Unjudged::enter(entry, Arc::clone(send), most).ok_or(Code::Overloaded)?;
    Ok(Allowed::Unjudged { place, account: account.to_owned(), would })
}

fn target(route: &Route, captures: &Captures<'_>, uri: &http::Uri) -> Option<http::Uri> {
    match &route.config.rewrite {
        None => match uri.path_and_query() {
            // Origin-form: the sender is no proxy.
            Some(target) if uri.scheme().is_some() || uri.authority().is_some() => {
                Some(http::Uri::from(target.clone()))
            }
            Some(_) => Some(uri.clone()),
            None => None,
        },
        Some(rewrite) => {
            let mut path = rewrite.apply(captures);
            if let Some(query) = uri.query() {
                path.push('?');
                path.push_str(query);
            }
            path.parse().ok()
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one request, each used once")]
fn prepare(
    route: &Route,
    method: http::Method,
    mut headers: http::HeaderMap,
    target: http::Uri,
    received: Received,
    incoming: Incoming,
    authority: &Allowed,
    came: &Came<'_>,
    request_id: &HeaderValue,
) -> Outgoing {
    let config = &route.config;
    let asked = came.host.filter(|_| config.preserve_host).and_then(|host| HeaderValue::from_str(host).ok());
    let host = asked.unwrap_or_else(|| route.authority.clone());
    outgoing::to_sender(&mut headers, &authority.sender(), came, host, request_id);
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
    Outgoing { request, progress, target: Arc::clone(&route.target), bounds }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one request, each used once")]
async fn forward(
    pool: Arc<crate::forward::pool::Pool>,
    outgoing: Outgoing,
    authority: Allowed,
    flight: Flight,
    send: Enlisted,
    verdict: HeaderValue,
    head_only: bool,
    request_id: HeaderValue,
) -> Response<ReplyBody> {
    let gateway = flight.gateway();
    let ended = move |failure: Option<Code>| {
        flight.land(failure);
        drop(send);
    };
    match exchange::send(&pool, outgoing, authority, ended).await {
        Ok(answer) => {
            let body = match answer.body {
                AnswerBody::Whole(frames) => ReplyBody::frames(frames),
                AnswerBody::Partial(frames, rest) => ReplyBody::partial(frames, rest),
            };
            let mut reply = Response::new(body);
            *reply.status_mut() = answer.head.status;
            *reply.headers_mut() = answer.head.headers;
            outgoing::to_caller(reply.headers_mut(), &request_id, head_only);
            reply.headers_mut().insert(VERDICT, verdict);
            reply
        }
        Err(Failure { code, detail }) => {
            gateway.registry.tell(|| Event::Refusal {
                account: None,
                code,
                request_id: request_id.to_str().unwrap_or("-").to_owned(),
            });
            reply::problem(code, &detail, &request_id, &Known::default())
        }
    }
}

fn refuse(
    gateway: &Gateway,
    rejected: Rejected<'_>,
    request_id: &HeaderValue,
    journey: &mut Journey,
) -> Response<ReplyBody> {
    let Rejected { code, detail, account, claim, current, allow } = rejected;
    journey.verdict(Verdict::Refused(code));
    if let Some(account) = &account {
        gateway.registry.reject(gateway.registry.get(account).as_deref(), code);
    }
    gateway.registry.tell(|| Event::Refusal {
        account: account.as_deref().and_then(crate::fence::name::AccountName::new),
        code,
        request_id: request_id.to_str().unwrap_or("-").to_owned(),
    });
    let known = Known {
        account: account.as_deref(),
        claim: claim.as_ref(),
        current: current.as_deref(),
        allow: allow.as_deref(),
    };
    reply::problem(code, &detail, request_id, &known)
}
