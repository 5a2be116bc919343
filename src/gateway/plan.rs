//! What is to be done with a request: what its head alone decides, then its body, then its verdict.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::Uri;
use http::request::Parts;
use hyper::body::Incoming;

use super::access;
use super::admission::{Judge, Refused};
use super::allowed::Allowed;
use super::body::{self, Received};
use super::claim;
use super::entry::{Entry, Send};
use super::fields::Fields;
use super::head::{self, Head, Refusal};
use super::journey::Journey;
use super::service::{Gateway, Room, Route, Worker};
use crate::code::Code;
use crate::config::{Captures, Mode};
use crate::fence::token::Claim;
use crate::fence::view::Holder;
use crate::forward::Stop;
use crate::telemetry::Verdict;

/// A refusal, with what is told beside its code.
#[derive(Debug)]
pub(super) struct Rejected<'a> {
    pub(super) code: Code,
    pub(super) detail: Cow<'static, str>,
    pub(super) account: Option<Cow<'a, str>>,
    /// The account's entry, where it has one.
    pub(super) entry: Option<Arc<Entry>>,
    pub(super) claim: Option<Claim>,
    pub(super) current: Option<Arc<Holder>>,
    pub(super) allow: Option<String>,
}

impl From<Refusal> for Box<Rejected<'_>> {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, detail } = refusal;
        Self::new(Rejected {
            code,
            detail,
            account: None,
            entry: None,
            claim: None,
            current: None,
            allow: None,
        })
    }
}

impl From<Code> for Box<Rejected<'_>> {
    fn from(code: Code) -> Self {
        Refusal::new(code, "").into()
    }
}

/// What the head alone decides.
pub(super) struct Plan<'a> {
    head: Head<'a>,
    route: Arc<Route>,
    captures: Captures<'a>,
    account: Cow<'a, str>,
    entry: Option<Arc<Entry>>,
    claim: Option<Claim>,
}

/// A request that is to be forwarded.
pub(super) struct Go {
    pub(super) allowed: Allowed,
    pub(super) claim: Option<Claim>,
    pub(super) route: Arc<Route>,
    pub(super) room: Room,
    pub(super) received: Received,
    /// What the sender is asked for.
    pub(super) target: Uri,
    /// What the caller asked for.
    pub(super) host: Option<String>,
}

/// Decides what the head alone decides: form, route, method, account, token, announced length.
pub(super) fn decide<'a>(
    gateway: &'a Gateway,
    parts: &'a Parts,
    fields: &Fields<'a>,
) -> Result<Plan<'a>, Box<Rejected<'a>>> {
    let head = head::check(parts, fields, gateway.limits.max_header_bytes)?;
    let (route, captures) = gateway.route(head.path).ok_or(Code::NoRoute)?;
    let config = &route.config;
    if let Some(methods) = &config.methods
        && !methods.iter().any(|method| method == parts.method.as_str())
    {
        let mut rejected: Box<Rejected<'_>> = Code::MethodNotAllowed.into();
        rejected.allow = Some(methods.join(", "));
        return Err(rejected);
    }
    if config.mode == Mode::Deny {
        return Err(Code::Denied.into());
    }
    let caller = access::caller(&gateway.keys, fields)?;
    let account = claim::account(&config.account, &captures, &head, &parts.headers)?;
    let entry = gateway.registry.get(&account);
    let with_account = |refusal: Refusal| {
        let mut rejected: Box<Rejected<'_>> = refusal.into();
        (rejected.account, rejected.entry) = (Some(account.clone()), entry.clone());
        rejected
    };
    caller.check(&account).map_err(with_account)?;
    let claim = match claim::token(fields) {
        Ok(claim) => Some(claim),
        // Parsing is strict in every mode; a token that is not there is only missed where it counts.
        Err(refusal) if config.mode == Mode::Enforce || refusal.code == Code::MalformedToken => {
            return Err(with_account(refusal));
        }
        Err(_) => None,
    };
    if body::announced(fields).is_some_and(|length| length > config.max_body) {
        let most = config.max_body;
        let refusal = Refusal::new(Code::BodyTooLarge, format!("the body may have at most {most} bytes"));
        return Err(with_account(refusal));
    }
    Ok(Plan { head, route: Arc::clone(route), captures, account, entry, claim })
}

impl<'a> Plan<'a> {
    /// Body first, then proof, verdict and permit. Dropped before it is ready, the request is withdrawn.
    pub(super) async fn run(
        &self,
        worker: &Worker,
        parts: &Parts,
        incoming: &mut Incoming,
        journey: &mut Journey,
        send: &Arc<Send>,
    ) -> Result<Go, Box<Rejected<'a>>> {
        let Self { head, route, captures, account, entry, claim } = self;
        let gateway = &worker.gateway;
        let entry = entry.as_ref();
        let rejected = |refused: Refused| {
            Box::new(Rejected {
                code: refused.code,
                detail: "".into(),
                account: Some(account.clone()),
                entry: entry.cloned(),
                claim: claim.clone(),
                current: refused.current,
                allow: None,
            })
        };
        let enforced = claim.as_ref().filter(|_| route.config.mode == Mode::Enforce);
        let judge = enforced.map(|claim| Judge {
            registry: &gateway.registry,
            relay: &worker.relay,
            rules: &gateway.rules,
            account,
            entry,
            claim,
            send,
            patience: route.config.drain_timeout,
        });
        if let Some(judge) = judge.as_ref().filter(|_| head.expects_continue) {
            journey.pause_reading();
            until_shutdown(send, pin!(judge.preview())).await.map_err(rejected)?;
            journey.go_on_reading();
        }
        send.set_deadline(Some(gateway.registry.clock.now().after(route.body_bounds.pause)));
        let receive = async { body::receive(gateway, route, entry, incoming).await.map_err(Refused::from) };
        let Some(received) = until_shutdown(send, pin!(receive)).await.map_err(rejected)? else {
            journey.verdict(Verdict::Withdrawn);
            return Err(Code::MalformedRequest.into());
        };
        send.set_deadline(None);
        journey.body_is_in();
        let allowed = match &judge {
            Some(judge) => {
                Allowed::Judged(until_shutdown(send, pin!(judge.admit())).await.map_err(rejected)?)
            }
            None => Allowed::unjudged(gateway, route, account, entry, claim.as_ref(), send)
                .map_err(|code| rejected(code.into()))?,
        };
        let room = gateway.room(route).ok_or_else(|| rejected(Code::Overloaded.into()))?;
        let target = target(route, captures, &parts.uri).ok_or(Code::MalformedPath)?;
        journey.verdict(allowed.verdict());
        let host = head.host.map(str::to_owned);
        Ok(Go { allowed, claim: claim.clone(), route: Arc::clone(route), room, received, target, host })
    }
}

/// Waits, unless the process has to end first, or the body had its time: then nothing was sent.
fn until_shutdown<'a, T>(
    send: &'a Send,
    mut work: Pin<&'a mut impl Future<Output = Result<T, Refused>>>,
) -> impl Future<Output = Result<T, Refused>> {
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        send.poll_stop(cx).map(|stop| match stop {
            Stop::Late => Err(Code::BodyTimeout.into()),
            Stop::ShuttingDown | Stop::Superseded | Stop::Cut => Err(Code::ShuttingDown.into()),
        })
    })
}

/// Path and query for the sender, in origin-form: it is no proxy.
fn target(route: &Route, captures: &Captures<'_>, uri: &Uri) -> Option<Uri> {
    let Some(rewrite) = &route.config.rewrite else {
        return uri.path_and_query().cloned().map(Uri::from);
    };
    let mut path = rewrite.apply(captures);
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    path.parse().ok()
}
