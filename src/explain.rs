//! `fencegate explain`: what the gateway makes of a request that is given as text.
//!
//! It parses with what the gateway parses with: the HTTP library, [`claim`](crate::claim), and the table of verdicts. It
//! sends nothing to any sender, and shows no identity that is a secret. The verdict is by the view that a running gateway
//! has at this moment, asked through its admin listener; where none answers, it says what is known without it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ask;
use crate::claim::access::{self, Caller};
use crate::claim::body::Beginning;
use crate::claim::choice::{self, Candidate, NoRoute};
use crate::claim::fields::Fields;
use crate::claim::head::{self, Refusal};
use crate::claim::reading::{Ahead, Reading};
use crate::code::Code;
use crate::config::{Config, Mode};
use crate::fence::token::{Claim, parse_epoch, parse_session};
use crate::fence::verdict::{Verdict, judge};
use crate::fence::view::{Holder, View};

/// A request as the HTTP library gives it.
struct Parsed {
    parts: Parts,
    has_body: bool,
    body: Result<Bytes, String>,
}

/// Explains a request; `key` is for the admin listener, where it wants one.
///
/// Cancellation: nothing is left behind.
pub async fn explain(config: &Config, text: &[u8], key: Option<&str>) -> String {
    let mut said = String::new();
    match parse(text).await {
        Err(why) => {
            let _ = writeln!(said, "verdict: no request: {why}");
        }
        Ok(parsed) => {
            if let Err(refusal) = of_parsed(config, &parsed, key, &mut said).await {
                say_refused(&mut said, &refusal);
            }
        }
    }
    said
}

fn say_refused(said: &mut String, refusal: &Refusal) {
    let Refusal { code, detail } = refusal;
    let detail = if detail.is_empty() { code.title() } else { detail };
    let _ = writeln!(said, "verdict: refused, {} ({}): {detail}", code.as_str(), code.status());
}

/// Lets the HTTP library parse a text, whatever its lines end with.
async fn parse(text: &[u8]) -> Result<Parsed, String> {
    let text = as_sent(text);
    let room = text.len() + 64 * 1024;
    let (mut caller, server) = tokio::io::duplex(room);
    caller.write_all(&text).await.map_err(|why| why.to_string())?;
    caller.shutdown().await.map_err(|why| why.to_string())?;
    let first: Arc<Mutex<Option<Parsed>>> = Arc::default();
    let place = Arc::clone(&first);
    let service = service_fn(move |request: Request<Incoming>| {
        let place = Arc::clone(&place);
        async move {
            let (parts, incoming) = request.into_parts();
            let has_body = !incoming.is_end_stream();
            let body = incoming.collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).map_err(|why| why.to_string());
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            // What follows the first request is another one.
            if place.is_none() {
                *place = Some(Parsed { parts, has_body, body });
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let served = http1::Builder::new().half_close(true).serve_connection(TokioIo::new(server), service).await;
    let parsed = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut answer = Vec::new();
    let _ = caller.read_to_end(&mut answer).await;
    parsed.ok_or_else(|| {
        let why = served.err().map_or_else(|| "the text is empty".to_owned(), |why| why.to_string());
        let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned();
        if status.is_empty() { why } else { format!("{why}; the HTTP library answers a bare {status}") }
    })
}

/// The bytes of a text: lines of its head end with CR and LF, and what follows the head is the body.
fn as_sent(text: &[u8]) -> Vec<u8> {
    let mut sent = Vec::with_capacity(text.len() + 64);
    let mut rest = text;
    let mut framed = false;
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        rest = after;
        if line.is_empty() {
            break;
        }
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        framed |=
            name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding");
        sent.extend_from_slice(line);
        sent.extend_from_slice(b"\r\n");
    }
    if !sent.is_empty() && !framed && !rest.is_empty() {
        sent.extend_from_slice(format!("Content-Length: {}\r\n", rest.len()).as_bytes());
    }
    sent.extend_from_slice(b"\r\n");
    sent.extend_from_slice(rest);
    sent
}

async fn of_parsed(
    config: &Config,
    parsed: &Parsed,
    key: Option<&str>,
    said: &mut String,
) -> Result<(), Refusal> {
    let Parsed { parts, has_body, body } = parsed;
    let fields = Fields::of(&parts.headers);
    let head = head::check(parts, &fields, config.limits.max_header_bytes)?;
    let candidates =
        choice::candidates(config.routes.iter(), parts.method.as_str(), &head).map_err(no_route)?;
    let ahead = Ahead { head: &head, parts, fields: &fields, has_body: *has_body };
    let mut frames = VecDeque::new();
    let mut rest = Bytes::new();
    let buffer = usize::try_from(candidates.first.route.buffer).unwrap_or(usize::MAX);
    match body {
        Ok(body) if body.len() > buffer => {
            rest = body.slice(buffer..);
            frames.push_back(body.slice(..buffer));
        }
        Ok(body) => frames.push_back(body.clone()),
        Err(why) => return Err(Refusal::new(Code::MalformedRequest, format!("the body is broken: {why}"))),
    }
    let beginning = Beginning { frames: &frames, complete: rest.is_empty() };
    let chosen = if candidates.needs_body() { candidates.choose(beginning)? } else { candidates.first };
    let Candidate { index, route, .. } = chosen;
    let _ = writeln!(
        said,
        "route:   number {index}, path = {:?}, mode {}",
        route.path.as_str(),
        mode(route.mode)
    );
    // Whoever is refused in any case needs no key.
    let caller = if route.mode == Mode::Deny {
        Caller::unknown()
    } else {
        access::caller(&config.auth.keys, &fields)?
    };
    let mut reading = match Reading::of_head(&chosen, ahead) {
        Ok(reading) => reading,
        Err(refused) => {
            if let Some(account) = &refused.account {
                let _ = writeln!(said, "account: {account}");
                caller.check(account)?;
            }
            return Err(refused.refusal);
        }
    };
    let screen = reading.of_body(beginning, ahead)?;
    if let (Some(account), Some(source)) = (&reading.account, reading.source) {
        let how = if route.identity.is_secret() { ", which stands for it" } else { "" };
        let _ = writeln!(said, "account: {account}, from {source}{how}");
        caller.check(account)?;
    }
    if let Some(claim) = &reading.claim {
        let _ = writeln!(said, "token:   {}", show(claim));
    } else {
        let _ = writeln!(said, "token:   none");
    }
    if head.expects_continue {
        let _ = writeln!(said, "note:    a verdict comes before 100 Continue as well");
    }
    if screen.is_some_and(|mut screen| !screen.look(&rest) || !screen.end()) {
        let _ = writeln!(
            said,
            "note:    beyond the buffer the body could be read in two ways: the send would be aborted, upstream_failed (502)"
        );
    }
    match (&reading.account, &reading.claim, route.mode) {
        (Some(account), Some(claim), Mode::Enforce) => verdict(config, account, claim, key, said).await,
        _ => {
            let _ =
                writeln!(said, "verdict: forwarded without one: the route's mode is {}", mode(route.mode));
        }
    }
    Ok(())
}

fn no_route(why: NoRoute) -> Refusal {
    match why {
        NoRoute::None => Refusal::new(Code::NoRoute, "no route has this path, or none its query"),
        NoRoute::Ambiguous(refusal) => refusal,
        NoRoute::Methods(methods) => {
            let detail = format!("routes with this path take {}", methods.join(", "));
            Refusal::new(Code::MethodNotAllowed, detail)
        }
    }
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Pass => "pass",
        Mode::Deny => "deny",
    }
}

fn show(claim: &Claim) -> String {
    let mut text = format!("seq {}, session {}", claim.seq.0, claim.session);
    if let Some(instance) = &claim.instance {
        let _ = write!(text, ", instance {instance:?}");
    }
    if let Some(epoch) = claim.epoch {
        let _ = write!(text, ", epoch {}", epoch.0);
    }
    text
}

/// The verdict by a running gateway's view.
async fn verdict(config: &Config, account: &str, claim: &Claim, key: Option<&str>, said: &mut String) {
    let shown = match ask::account(&config.listen, key, account).await {
        Ok(shown) => shown,
        Err(why) => {
            let _ = writeln!(
                said,
                "verdict: admitted if {account} is held with this token, refused otherwise; who holds it is not known: {why}"
            );
            return;
        }
    };
    let state = shown.as_ref().and_then(|shown| shown.get("state")?.as_str()).unwrap_or("absent");
    let view = match (state, shown.as_ref().and_then(holder)) {
        ("absent", _) => View::Absent,
        ("held", Some(holder)) => View::Held(Arc::new(holder)),
        ("vacant", _) => View::Vacant,
        ("invalid", _) => {
            return say_refused(said, &Refusal::new(Code::InvalidHolder, "the gateway's log says why"));
        }
        _ => {
            let _ = writeln!(said, "verdict: not known yet: the gateway is still reading this account");
            return;
        }
    };
    match judge(&view, claim) {
        Verdict::Admit(holder) => {
            let _ = writeln!(
                said,
                "verdict: admitted: {account} is held by {:?} with this token, in epoch {}, as the gateway sees it now; a real \
                 send is judged under a proof of its own",
                holder.instance, holder.epoch.0
            );
        }
        Verdict::Refuse(code) => {
            let seen = match &view {
                View::Held(holder) => {
                    format!("seq {} of {:?} holds {account}", holder.seq.0, holder.instance)
                }
                View::Vacant => format!("nobody holds {account}"),
                View::Absent | View::Invalid(_) => format!("nobody ever registered for {account}"),
            };
            say_refused(
                said,
                &Refusal::new(code, format!("{}; {seen}, as the gateway sees it now", code.title())),
            );
        }
    }
}

/// The holder as the admin listener shows it.
fn holder(shown: &Value) -> Option<Holder> {
    let holder = shown.get("holder")?;
    let text = |name: &str| holder.get(name)?.as_str();
    Some(Holder {
        seq: crate::fence::token::Seq(holder.get("seq")?.as_u64()?),
        session: parse_session(text("session")?.as_bytes()).ok()?,
        instance: text("instance_id")?.to_owned(),
        epoch: parse_epoch(text("epoch")?.as_bytes()).ok()?,
        active_since: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_what_would_be_sent() {
        assert_eq!(as_sent(b"GET / HTTP/1.1\nHost: h\n\n"), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(as_sent(b"GET / HTTP/1.1\r\nHost: h"), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(
            as_sent(b"POST / HTTP/1.1\nHost: h\n\na\nb"),
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na\nb"
        );
        let framed = b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nab";
        assert_eq!(as_sent(framed), framed);
    }
}
