//! What is to be done with a request: what its head alone decides, then its body, then its verdict.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::Uri;
use http::request::Parts;
use hyper::body::Incoming;

use super::access::{self, Caller};
use super::admission::{Judge, Refused};
use super::allowed::Allowed;
use super::body::{self, Received};
use super::entry::{Entry, Send};
use super::journey::Journey;
use super::registry::Registry;
use super::service::{Gateway, Room, Route, Worker};
use crate::claim::account;
use crate::claim::body::{self as bodies, Kind};
use crate::claim::choice::{self, Candidate, Candidates, NoRoute};
use crate::claim::fields::Fields;
use crate::claim::head::{self, Head, Refusal};
use crate::claim::token;
use crate::code::Code;
use crate::config::{Captures, Form, Mode};
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
    /// The form that its route gives it.
    pub(super) form: Option<&'a Form>,
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
            form: None,
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
    candidates: Candidates<'a>,
    /// On the first candidate; `None` where the body decides which one it is.
    claimed: Option<Claimed<'a>>,
}

/// What a request claims on a route.
struct Claimed<'a> {
    candidate: Candidate<'a>,
    caller: Caller<'a>,
    /// `None` until its body is in.
    account: Option<Cow<'a, str>>,
    entry: Option<Arc<Entry>>,
    claim: Option<Claim>,
    /// How its body is read for its account.
    kind: Option<Kind>,
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

/// What of a request is there before its body.
struct Ahead<'g, 'a> {
    gateway: &'a Gateway,
    head: &'g Head<'a>,
    parts: &'a Parts,
    fields: &'g Fields<'a>,
    has_body: bool,
}

/// Decides what the head alone decides: form, route, method, account, token, announced length.
pub(super) fn decide<'a>(
    gateway: &'a Gateway,
    parts: &'a Parts,
    fields: &Fields<'a>,
    has_body: bool,
) -> Result<Plan<'a>, Box<Rejected<'a>>> {
    let head = head::check(parts, fields, gateway.limits.max_header_bytes)?;
    let routes = gateway.routes.iter().map(|route| &route.config);
    let candidates = choice::candidates(routes, parts.method.as_str(), &head).map_err(no_route)?;
    let ahead = Ahead { gateway, head: &head, parts, fields, has_body };
    let claimed = if candidates.needs_body() {
        // Where every one of them would refuse it, the body does not matter.
        let refusals: Result<Vec<_>, ()> =
            candidates.iter().map(|candidate| ahead.claimed(candidate).err().ok_or(())).collect();
        if let Some(refusal) = refusals.ok().and_then(|refusals| refusals.into_iter().next()) {
            return Err(refusal);
        }
        None
    } else {
        Some(ahead.claimed(&candidates.first)?)
    };
    Ok(Plan { head, candidates, claimed })
}

fn no_route<'a>(why: NoRoute) -> Box<Rejected<'a>> {
    match why {
        NoRoute::None => Code::NoRoute.into(),
        NoRoute::Query(refusal) => refusal.into(),
        NoRoute::Methods(methods) => {
            let mut rejected: Box<Rejected<'_>> = Code::MethodNotAllowed.into();
            rejected.allow = Some(methods.join(", "));
            rejected
        }
    }
}

impl<'a> Ahead<'_, 'a> {
    fn claimed(&self, candidate: &Candidate<'a>) -> Result<Claimed<'a>, Box<Rejected<'a>>> {
        let Candidate { route, captures, .. } = candidate;
        let (parts, fields) = (self.parts, self.fields);
        let told = |refusal: Refusal| candidate_refuses(candidate, refusal);
        if route.mode == Mode::Deny {
            return Err(told(Refusal::new(Code::Denied, "")));
        }
        let caller = access::caller(&self.gateway.keys, fields).map_err(told)?;
        let found = account::in_head(route, captures, self.head, &parts.headers).map_err(told)?;
        let kind = if self.has_body && bodies::is_read_by(route) {
            Some(bodies::kind(route, &parts.headers).map_err(told)?)
        } else {
            None
        };
        let account = match &kind {
            Some(_) => None,
            None => Some(account::name(route, found).map_err(told)?),
        };
        let entry = account.as_ref().and_then(|account| self.gateway.registry.get(account));
        let with_account = |refusal: Refusal| {
            let mut rejected = told(refusal);
            (rejected.account, rejected.entry) = (account.clone(), entry.clone());
            rejected
        };
        if let Some(account) = &account {
            caller.check(account).map_err(with_account)?;
        }
        let claim = match token::token(fields) {
            Ok(claim) => Some(claim),
            // Parsing is strict in every mode; a token that is not there is only missed where it counts.
            Err(refusal) if route.mode == Mode::Enforce || refusal.code == Code::MalformedToken => {
                return Err(with_account(refusal));
            }
            Err(_) => None,
        };
        let most = if kind == Some(Kind::Json) { route.max_body.min(route.buffer) } else { route.max_body };
        if body::announced(fields).is_some_and(|length| length > most) {
            let refusal = Refusal::new(Code::BodyTooLarge, format!("the body may have at most {most} bytes"));
            return Err(with_account(refusal));
        }
        Ok(Claimed { candidate: *candidate, caller, account, entry, claim, kind })
    }
}

fn candidate_refuses<'a>(candidate: &Candidate<'a>, refusal: Refusal) -> Box<Rejected<'a>> {
    let mut rejected: Box<Rejected<'_>> = refusal.into();
    rejected.form = candidate.route.refusal.as_ref();
    rejected
}

impl<'a> Plan<'a> {
    /// Body first, then account where the body has it, proof, verdict and permit. Dropped before it is ready, the
    /// request is withdrawn.
    pub(super) async fn run(
        &mut self,
        worker: &'a Worker,
        parts: &'a Parts,
        fields: &Fields<'a>,
        incoming: &mut Incoming,
        journey: &mut Journey,
        send: &Arc<Send>,
    ) -> Result<Go, Box<Rejected<'a>>> {
        let Self { head, candidates, claimed } = self;
        let gateway = &worker.gateway;
        if let Some(claimed) = claimed.as_ref().filter(|_| head.expects_continue)
            && let Some(judge) = claimed.judge(worker, send)
        {
            journey.pause_reading();
            until_shutdown(send, pin!(judge.preview())).await.map_err(|refused| claimed.refused(refused))?;
            journey.go_on_reading();
        }
        let first = gateway.routes.get(candidates.first.index).ok_or(Code::Internal)?;
        let entry = claimed.as_ref().and_then(|claimed| claimed.entry.as_ref());
        send.set_deadline(Some(gateway.registry.clock.now().after(first.body_bounds.pause)));
        let receive = async { body::receive(gateway, first, entry, incoming).await.map_err(Refused::from) };
        let received = until_shutdown(send, pin!(receive)).await.map_err(|refused| match &claimed {
            Some(claimed) => claimed.refused(refused),
            None => candidate_refuses(&candidates.first, Refusal::new(refused.code, "")),
        })?;
        let Some(mut received) = received else {
            journey.verdict(Verdict::Withdrawn);
            return Err(Code::MalformedRequest.into());
        };
        send.set_deadline(None);
        journey.body_is_in();
        let claimed = match claimed {
            Some(claimed) => claimed,
            None => {
                let chosen = candidates
                    .choose(received.beginning())
                    .map_err(|refusal| candidate_refuses(&candidates.first, refusal))?;
                let ahead = Ahead { gateway, head, parts, fields, has_body: true };
                claimed.insert(ahead.claimed(&chosen)?)
            }
        };
        if let Some(kind) = claimed.kind.take() {
            claimed.read(&gateway.registry, &kind, &mut received, head, parts)?;
        }
        let claimed = &*claimed;
        let Claimed { candidate, account, entry, claim, .. } = claimed;
        let (Some(account), Some(route)) = (account, gateway.routes.get(candidate.index)) else {
            return Err(Code::Internal.into());
        };
        let allowed = match claimed.judge(worker, send) {
            Some(judge) => {
                let admitted = until_shutdown(send, pin!(judge.admit())).await;
                Allowed::Judged(admitted.map_err(|refused| claimed.refused(refused))?)
            }
            None => Allowed::unjudged(gateway, route, account, entry.as_ref(), claim.as_ref(), send)
                .map_err(|code| claimed.refused(code.into()))?,
        };
        let room = gateway.room(route).ok_or_else(|| claimed.refused(Code::Overloaded.into()))?;
        let target = target(route, &candidate.captures, &parts.uri).ok_or(Code::MalformedPath)?;
        journey.verdict(allowed.verdict());
        let host = head.host.map(str::to_owned);
        Ok(Go { allowed, claim: claim.clone(), route: Arc::clone(route), room, received, target, host })
    }
}

impl<'a> Claimed<'a> {
    /// What judges it, where anything does and its account is known.
    fn judge<'j>(&'j self, worker: &'j Worker, send: &'j Arc<Send>) -> Option<Judge<'j>> {
        let claim = self.claim.as_ref().filter(|_| self.candidate.route.mode == Mode::Enforce)?;
        Some(Judge {
            registry: &worker.gateway.registry,
            relay: &worker.relay,
            rules: &worker.gateway.rules,
            account: self.account.as_ref()?,
            entry: self.entry.as_ref(),
            claim,
            send,
            patience: self.candidate.route.drain_timeout,
        })
    }

    fn refused(&self, refused: Refused) -> Box<Rejected<'a>> {
        Box::new(Rejected {
            code: refused.code,
            detail: "".into(),
            account: self.account.clone(),
            entry: self.entry.clone(),
            claim: self.claim.clone(),
            current: refused.current,
            allow: None,
            form: self.candidate.route.refusal.as_ref(),
        })
    }

    /// Finds the account in what is in of the body.
    fn read(
        &mut self,
        registry: &Registry,
        kind: &Kind,
        received: &mut Received,
        head: &Head<'a>,
        parts: &'a Parts,
    ) -> Result<(), Box<Rejected<'a>>> {
        let Candidate { route, captures, .. } = &self.candidate;
        let told = |refusal: Refusal| candidate_refuses(&self.candidate, refusal);
        let (named, rest) = bodies::read(route, kind, received.beginning()).map_err(told)?;
        let mut found = account::in_head(route, captures, head, &parts.headers).map_err(told)?;
        for more in named {
            found = Some(account::agree(route, found, more).map_err(told)?);
        }
        let account = account::name(route, found).map_err(told)?;
        let entry = registry.get(&account);
        let checked = self.caller.check(&account);
        (self.account, self.entry) = (Some(account), entry);
        received.rest = rest;
        checked.map_err(|refusal| self.refused(refusal.code.into()))
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
