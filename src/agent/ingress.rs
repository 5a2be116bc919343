//! The way of one request of a bot: head, route, account, role, body, role again, token, forward, answer.
//!
//! Read as strictly as by the gateway. It never forwards in any role but LEADER, and never replaces what a bot was told.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::Agent;
use super::leading::Leading;
use super::reply::{REQUEST_ID, Refusal, ReplyBody, forwarded, problem};
use super::room::Room;
use crate::claim::body::{self as bodies, Beginning};
use crate::claim::choice::{self, Candidate, NoRoute};
use crate::claim::fields::Fields;
use crate::claim::head;
use crate::claim::reading::{self, Ahead, Reading};
use crate::claim::request_id::request_id;
use crate::claim::token;
use crate::code::Code;
use crate::config::Route;
use crate::elector::{NotLeader, Token};
use crate::fence::elector::Role;
use crate::fence::name::AccountName;
use crate::fence::token::{Epoch, encode_instance};
use crate::forward::body::{Progress, RequestBody, Rest, Screen, discard};
use crate::forward::exchange::{self, Bounds, Failure, Outgoing};
use crate::forward::pieces::Pieces;
use crate::forward::target::Choice;
use crate::key;
use crate::web::pages;

const SEQ: HeaderName = HeaderName::from_static("x-fencing-seq");
const SESSION: HeaderName = HeaderName::from_static("x-fencing-session");
const INSTANCE: HeaderName = HeaderName::from_static("x-fencing-instance");
const EPOCH: HeaderName = HeaderName::from_static("x-fencing-epoch");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A refusal, with what is told beside it.
struct Refused {
    refusal: Refusal,
    account: Option<String>,
}

impl From<head::Refusal> for Refused {
    fn from(refusal: head::Refusal) -> Self {
        Self { refusal: Refusal::Code(refusal.code, refusal.detail.into_owned()), account: None }
    }
}

impl From<reading::Refused<'_>> for Refused {
    fn from(refused: reading::Refused<'_>) -> Self {
        refused.refusal.into()
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Self { refusal: Refusal::Code(code, String::new()), account: None }
    }
}

impl Refused {
    fn of(mut self, account: &AccountName) -> Self {
        self.account = Some(account.as_str().to_owned());
        self
    }
}

/// Serves one request. Dropped, the connection to the gateway is closed with it; the gateway knows what that means.
pub(super) async fn serve(
    agent: Arc<Agent>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let (parts, incoming) = request.into_parts();
    let mut incoming = Some(incoming);
    let expects = parts.headers.contains_key(header::EXPECT);
    let request_id = request_id(&Fields::of(&parts.headers));
    let refused = match forward(&agent, peer, parts, &mut incoming, &request_id).await {
        Ok(mut reply) => {
            agent.counts.forwarded.fetch_add(1, SeqCst);
            Fields::of(reply.headers()).ending().keep_fence().strip(reply.headers_mut());
            return reply;
        }
        Err(refused) => refused,
    };
    match &refused.refusal {
        Refusal::NotLeader(..) => drop(agent.counts.not_leader.fetch_add(1, SeqCst)),
        Refusal::Code(code, _) => agent.counts.refuse(*code),
    }
    let mut reply = problem(&refused.refusal, refused.account.as_deref(), &request_id);
    // Whoever waits for 100 Continue may send its body now or not: nobody can tell where a next request begins.
    let unread = incoming.filter(|incoming| !incoming.is_end_stream());
    if (expects && unread.is_some()) || agent.is_stopping() {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    // The bot may still be sending: what it sends is read and dropped, so that it can read the refusal.
    if let Some(unread) = unread {
        discard(unread, ());
    }
    reply
}

async fn forward(
    agent: &Arc<Agent>,
    peer: IpAddr,
    parts: Parts,
    incoming: &mut Option<Incoming>,
    request_id: &HeaderValue,
) -> Result<Response<ReplyBody>, Refused> {
    let fields = Fields::of(&parts.headers);
    let head = head::check(&parts, &fields, agent.limits.max_header_bytes)?;
    // Bots need no token here: a page in a browser on this machine would send as the holder.
    pages::check(&parts.headers, pages::Room::Sends).map_err(|why| head::Refusal::new(Code::Denied, why))?;
    let has_body = incoming.as_ref().is_some_and(|incoming| !incoming.is_end_stream());
    let ahead = Ahead { head: &head, parts: &parts, fields: &fields, has_body };
    let candidates = choice::candidates(agent.routes.iter(), parts.method.as_str(), &head)?;
    let epoch = presented(&fields)?;
    let mut reading = None;
    if !candidates.needs_body() {
        let first = Reading::of_head(&candidates.first, ahead)?;
        // A bot that does not lead hears so before it sends its body.
        if let Some(account) = &first.account {
            led(agent, &account_name(account)?, epoch)?;
        }
        reading = Some(first);
    }
    let Candidate { index, route, .. } = candidates.first;
    let mut room = agent.rooms.enter(index).ok_or(Code::Overloaded)?;
    let receiving = receive(incoming.as_mut(), route, &mut room);
    let mut received = tokio::time::timeout(agent.limits.body_read_timeout, receiving)
        .await
        .unwrap_or(Err(Code::BodyTimeout))?;
    let mut reading = match reading {
        Some(reading) => reading,
        None => Reading::of_head(&candidates.choose(received.beginning())?, ahead)?,
    };
    let number = reading.candidate.index;
    if number != index {
        let before = std::mem::replace(&mut room, agent.rooms.enter(number).ok_or(Code::Overloaded)?);
        // What was received is still held, now in this one's name.
        drop(before);
        if !room.hold(received.size) {
            return Err(Code::Overloaded.into());
        }
    }
    received.rest = reading.of_body(received.beginning(), ahead)?;
    let account = account_name(&reading.account.ok_or(Code::Internal)?)?;
    let token = led(agent, &account, epoch)?;
    let route = agent.routes.get(number).ok_or(Code::Internal)?;
    let rest = incoming.take_if(|_| !received.complete);
    let (body, progress) = received.into_body(rest, route, agent.limits.body_read_timeout);
    let Parts { method, uri, mut headers, version, .. } = parts;
    to_gateway(agent, &mut headers, &token, peer, version);
    headers.insert(REQUEST_ID, request_id.clone());
    if body.is_end_stream() && [Method::POST, Method::PUT, Method::PATCH].contains(&method) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri.path_and_query().cloned().map_or_else(|| uri.clone(), Into::into);
    *request.headers_mut() = headers;
    let bounds = Bounds {
        connect: route.connect_timeout,
        total: route.upstream_timeout,
        idle: route.upstream_idle_timeout,
        answer_buffer: route.answer_buffer,
    };
    let choice = Choice::only(Arc::clone(&agent.target));
    let memory = agent.memory.clone();
    let outgoing = Outgoing { request, progress, choice, preserves_host: false, bounds, memory };
    let leading = Leading::new(agent.elector.clone(), account.clone(), token, room);
    match exchange::send(&agent.pool, outgoing, leading, |_| {}).await {
        Ok(answer) => Ok(forwarded(answer)),
        // It ended while a connection was made: nothing was written.
        Err(Failure { code: Code::Superseded, .. }) => match agent.elector.token(account.as_str()) {
            Err(not) => Err(not_leader(&account, not)),
            Ok(_) => Err(Refused::from(Code::Superseded).of(&account)),
        },
        Err(Failure { code, detail }) => {
            Err(Refused { refusal: Refusal::Code(code, detail), account: None }.of(&account))
        }
    }
}

impl From<NoRoute> for Refused {
    fn from(why: NoRoute) -> Self {
        match why {
            NoRoute::None => Code::NoRoute.into(),
            NoRoute::Ambiguous(refusal) => refusal.into(),
            NoRoute::Methods(methods) => {
                let detail = format!("the route takes {}", methods.join(", "));
                head::Refusal::new(Code::MethodNotAllowed, detail).into()
            }
        }
    }
}

/// The epoch that the bot was told; anything else of a token is refused.
fn presented(fields: &Fields<'_>) -> Result<Option<Epoch>, head::Refusal> {
    if [fields.seq.value, fields.session.value, fields.instance.value].iter().any(Option::is_some) {
        let detail = "the agent adds the token; send X-Fencing-Epoch, or nothing of it";
        return Err(head::Refusal::new(Code::MalformedToken, detail));
    }
    token::epoch(fields)
}

fn account_name(name: &str) -> Result<AccountName, head::Refusal> {
    AccountName::new(name).ok_or_else(|| head::Refusal::new(Code::MalformedAccount, ""))
}

/// The token, if the account is led, and in the term that the bot was told.
fn led(agent: &Agent, account: &AccountName, told: Option<Epoch>) -> Result<Token, Refused> {
    let token = agent.elector.token(account.as_str()).map_err(|not| not_leader(account, not))?;
    match told {
        Some(epoch) if epoch != token.epoch => {
            let detail = "this instance leads in another term by now; stop sending and ask for the new one";
            Err(Refused::from(head::Refusal::new(Code::EpochMismatch, detail)).of(account))
        }
        Some(_) | None => Ok(token),
    }
}

fn not_leader(account: &AccountName, not: NotLeader) -> Refused {
    let refusal = match not {
        NotLeader::Unknown => {
            let detail = "the agent takes no part in this account's election; see [agent] accounts";
            Refusal::Code(Code::UnknownAccount, detail.to_owned())
        }
        NotLeader::Role(role, why) => Refusal::NotLeader(
            role.as_str(),
            format!("its role is {} ({}); send where the leader is, or wait", role.as_str(), why.as_str()),
        ),
        NotLeader::Changed | NotLeader::Unproven => {
            Refusal::NotLeader(Role::Suspend.as_str(), not.to_string())
        }
    };
    Refused { refusal, account: None }.of(account)
}

/// What was received before anything is sent.
#[derive(Default)]
struct Received {
    pieces: Pieces,
    size: u64,
    complete: bool,
    /// What looks through the rest, where its account was read from the beginning.
    rest: Option<bodies::Rest>,
}

/// Reads the body up to the route's buffer.
async fn receive(incoming: Option<&mut Incoming>, route: &Route, room: &mut Room) -> Result<Received, Code> {
    let mut received = Received::default();
    if let Some(incoming) = incoming {
        while !incoming.is_end_stream() {
            if received.size > route.buffer {
                return Ok(received);
            }
            let data = match incoming.frame().await {
                None => break,
                // Trailers end here; they carry nothing that counts.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(_)) => return Err(Code::MalformedRequest),
            };
            received.size += data.len() as u64;
            if received.size > route.max_body {
                return Err(Code::BodyTooLarge);
            }
            if !room.hold(data.len() as u64) {
                return Err(Code::Overloaded);
            }
            if !data.is_empty() {
                received.pieces.push(data);
            }
        }
    }
    received.complete = true;
    Ok(received)
}

impl Received {
    /// What is in, all of it.
    fn beginning(&mut self) -> Beginning<'_> {
        Beginning { frames: self.pieces.gathered(), complete: self.complete }
    }

    /// The body to send: what was received, and what still comes.
    fn into_body(
        self,
        rest: Option<Incoming>,
        route: &Route,
        pause: Duration,
    ) -> (RequestBody, Option<Progress>) {
        match rest {
            None => (RequestBody::buffered(self.pieces.into_frames()), None),
            Some(incoming) => {
                let rest = Rest {
                    incoming,
                    most: route.max_body.saturating_sub(self.size),
                    pause,
                    screen: self.rest.map(|rest| Box::new(rest) as Box<dyn Screen>),
                };
                let (body, progress) = RequestBody::streaming(self.pieces.into_frames(), rest);
                (body, Some(progress))
            }
        }
    }
}

/// Makes a bot's headers what the gateway gets.
fn to_gateway(agent: &Agent, headers: &mut HeaderMap, token: &Token, peer: IpAddr, version: Version) {
    Fields::of(headers).ending().strip(headers);
    headers.insert(SEQ, number(token.seq));
    headers.insert(SESSION, number(token.session.0));
    headers.insert(EPOCH, number(token.epoch));
    let instance = encode_instance(&token.instance);
    headers.insert(INSTANCE, HeaderValue::from_str(&instance).unwrap_or(HeaderValue::from_static("-")));
    if let Some(key) = &agent.key {
        headers.insert(key::HEADER, key.clone());
    }
    headers.append(FORWARDED_FOR, number(peer));
    let via = if version == Version::HTTP_10 { "1.0 fencegate-agent" } else { "1.1 fencegate-agent" };
    headers.append(header::VIA, HeaderValue::from_static(via));
    headers.insert(header::HOST, agent.target.authority.clone());
}

fn number(value: impl std::fmt::Display) -> HeaderValue {
    HeaderValue::from_str(&value.to_string()).unwrap_or(HeaderValue::from_static("-"))
}
