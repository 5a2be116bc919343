//! What is to be done with a request: what its head alone decides, then its body, then its verdict.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::Uri;
use http::request::Parts;
use hyper::body::Incoming;

use super::admission::{Judge, Refused};
use super::allowed::Allowed;
use super::body::{self, Received};
use super::entry::{Entry, Send};
use super::journey::Journey;
use super::registry::Registry;
use super::service::{Gateway, Room, Route, Worker};
use crate::claim::access::{self, Caller};
use crate::claim::choice::{self, Candidate, Candidates, NoRoute};
use crate::claim::fields::Fields;
use crate::claim::head::{self, Head, Refusal};
use crate::claim::reading::{Ahead, Reading};
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

/// What a request claims on a route, with what is known of it here.
struct Claimed<'a> {
    reading: Reading<'a>,
    caller: Caller<'a>,
    entry: Option<Arc<Entry>>,
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
    has_body: bool,
) -> Result<Plan<'a>, Box<Rejected<'a>>> {
    let head = head::check(parts, fields, gateway.limits.max_header_bytes)?;
    let routes = gateway.routes.iter().map(|route| &route.config);
    let candidates = choice::candidates(routes, parts.method.as_str(), &head).map_err(no_route)?;
    let ahead = Ahead { head: &head, parts, fields, has_body };
    let claimed = if candidates.needs_body() {
        // Where every one of them would refuse it, the body does not matter.
        let refusals: Result<Vec<_>, ()> =
            candidates.iter().map(|candidate| claimed(gateway, candidate, ahead).err().ok_or(())).collect();
        if let Some(refusal) = refusals.ok().and_then(|refusals| refusals.into_iter().next()) {
            return Err(refusal);
        }
        None
    } else {
        Some(claimed(gateway, &candidates.first, ahead)?)
    };
    Ok(Plan { head, candidates, claimed })
}

fn no_route<'a>(why: NoRoute) -> Box<Rejected<'a>> {
    match why {
        NoRoute::None => Code::NoRoute.into(),
        NoRoute::Ambiguous(refusal) => refusal.into(),
        NoRoute::Methods(methods) => {
            let mut rejected: Box<Rejected<'_>> = Code::MethodNotAllowed.into();
            rejected.allow = Some(methods.join(", "));
            rejected
        }
    }
}

fn claimed<'a>(
    gateway: &'a Gateway,
    candidate: &Candidate<'a>,
    ahead: Ahead<'_, 'a>,
) -> Result<Claimed<'a>, Box<Rejected<'a>>> {
    // Whoever is refused in any case needs no key.
    let caller = if candidate.route.mode == Mode::Deny {
        Caller::unknown()
    } else {
        access::caller(&gateway.keys, ahead.fields).map_err(|why| candidate_refuses(candidate, why))?
    };
    let read = Reading::of_head(candidate, ahead);
    let account = match &read {
        Ok(reading) => &reading.account,
        Err(refused) => &refused.account,
    };
    let entry = account.as_ref().and_then(|account| gateway.registry.get(account));
    let checked = account.as_ref().map_or(Ok(()), |account| caller.check(account));
    let (refusal, account) = match (checked, read) {
        (Ok(()), Ok(reading)) => return Ok(Claimed { reading, caller, entry }),
        (Ok(()), Err(refused)) => (refused.refusal, refused.account),
        (Err(forbidden), Ok(reading)) => (forbidden, reading.account),
        (Err(forbidden), Err(refused)) => (forbidden, refused.account),
    };
    let mut rejected = candidate_refuses(candidate, refusal);
    (rejected.account, rejected.entry) = (account, entry);
    Err(rejected)
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
        let ahead = Ahead { head, parts, fields, has_body: true };
        let claimed = match claimed {
            Some(claimed) => claimed,
            None => {
                let chosen = candidates
                    .choose(received.beginning())
                    .map_err(|refusal| candidate_refuses(&candidates.first, refusal))?;
                // It was read within the first candidate's bounds.
                if received.size() > chosen.route.max_body {
                    return Err(candidate_refuses(&chosen, Refusal::new(Code::BodyTooLarge, "")));
                }
                claimed.insert(self::claimed(gateway, &chosen, ahead)?)
            }
        };
        if claimed.reading.kind.is_some() {
            claimed.read_body(&gateway.registry, &mut received, ahead)?;
        }
        let claimed = &*claimed;
        let Claimed { reading: Reading { candidate, account, claim, .. }, entry, .. } = claimed;
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
        let Reading { candidate, account, claim, .. } = &self.reading;
        let claim = claim.as_ref().filter(|_| candidate.route.mode == Mode::Enforce)?;
        Some(Judge {
            registry: &worker.gateway.registry,
            relay: &worker.relay,
            rules: &worker.gateway.rules,
            account: account.as_ref()?,
            entry: self.entry.as_ref(),
            claim,
            send,
            patience: candidate.route.drain_timeout,
        })
    }

    fn refused(&self, refused: Refused) -> Box<Rejected<'a>> {
        Box::new(Rejected {
            code: refused.code,
            detail: "".into(),
            account: self.reading.account.clone(),
            entry: self.entry.clone(),
            claim: self.reading.claim.clone(),
            current: refused.current,
            allow: None,
            form: self.reading.candidate.route.refusal.as_ref(),
        })
    }

    /// Finds the account in what is in of the body.
    fn read_body(
        &mut self,
        registry: &Registry,
        received: &mut Received,
        ahead: Ahead<'_, 'a>,
    ) -> Result<(), Box<Rejected<'a>>> {
        let read = self.reading.of_body(received.beginning(), ahead);
        received.rest = read.map_err(|refusal| candidate_refuses(&self.reading.candidate, refusal))?;
        let Some(account) = &self.reading.account else { return Ok(()) };
        self.entry = registry.get(account);
        self.caller.check(account).map_err(|refusal| self.refused(refusal.code.into()))
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
