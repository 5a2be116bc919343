//! What changes on a request's way to the sender and on an answer's way back: hop-by-hop fields, and who sends.
//!
//! Values that are not the gateway's own pass unchanged.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use super::entry::Identity;
use super::reply::REQUEST_ID;
use crate::claim::fields::{Ending, Fields};

const ACCOUNT: HeaderName = HeaderName::from_static("x-fencing-account");
const SEQ: HeaderName = HeaderName::from_static("x-fencing-seq");
const SESSION: HeaderName = HeaderName::from_static("x-fencing-session");
const INSTANCE: HeaderName = HeaderName::from_static("x-fencing-instance");
const EPOCH: HeaderName = HeaderName::from_static("x-fencing-epoch");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// How many fields a request gets at the most.
const ADDED: usize = 11;

/// Who a request is from, for the sender.
#[derive(Debug)]
pub enum Sender<'a> {
    /// The holder.
    Holder(&'a Identity),
    /// Nobody was judged: only the account is known.
    Unjudged(&'a str),
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether it is spoken to over TLS.
    pub tls: bool,
}

/// How a request came in.
#[derive(Debug)]
pub struct Came<'a> {
    /// The caller.
    pub peer: Peer,
    /// The Host it asked for.
    pub host: Option<&'a str>,
    /// Over which version of HTTP.
    pub version: Version,
}

/// Makes a request's headers what the sender gets.
pub fn to_sender(
    headers: &mut HeaderMap,
    ending: Ending,
    sender: &Sender<'_>,
    came: &Came<'_>,
    host: HeaderValue,
    request_id: &HeaderValue,
) {
    let replaced = matches!(sender, Sender::Holder(_));
    let ending = if replaced { ending.keep_token() } else { ending };
    ending.strip(headers);
    // Grown once and not in the middle.
    headers.reserve(ADDED);
    if came.version == Version::HTTP_2 {
        join_cookies(headers);
    }
    match sender {
        Sender::Holder(identity) => {
            headers.insert(ACCOUNT, identity.account.clone());
            headers.insert(SEQ, identity.seq.clone());
            headers.insert(SESSION, identity.session.clone());
            headers.insert(INSTANCE, identity.instance.clone());
            headers.insert(EPOCH, identity.epoch.clone());
        }
        Sender::Unjudged(account) => {
            if let Ok(account) = HeaderValue::from_str(account) {
                headers.insert(ACCOUNT, account);
            }
        }
    }
    headers.insert(REQUEST_ID, request_id.clone());
    headers.insert(FORWARDED_FOR, address(came.peer.address));
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if came.peer.tls { "https" } else { "http" }));
    match came.host.and_then(|host| HeaderValue::from_str(host).ok()) {
        Some(asked) => headers.insert(FORWARDED_HOST, asked),
        None => headers.remove(FORWARDED_HOST),
    };
    headers.append(header::VIA, via(came.version));
    headers.insert(header::HOST, host);
}

/// HTTP/2 may split a cookie over several fields; outside of it they are one.
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(b"; ".as_slice()))
    {
        headers.insert(header::COOKIE, cookie);
    }
}

fn address(peer: IpAddr) -> HeaderValue {
    if peer == IpAddr::V4(std::net::Ipv4Addr::LOCALHOST) {
        return HeaderValue::from_static("127.0.0.1");
    }
    HeaderValue::from_str(&peer.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2 fencegate",
        Version::HTTP_10 => "1.0 fencegate",
        _ => "1.1 fencegate",
    })
}

/// The length that an answer announces. Beside a transfer coding it means nothing.
#[must_use]
pub fn length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Makes an answer's headers what the caller gets.
pub fn to_caller(headers: &mut HeaderMap, request_id: &HeaderValue) {
    let ending = Fields::of(headers).ending();
    ending.strip(headers);
    headers.insert(REQUEST_ID, request_id.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_at_this_hop_does_not_reach_the_sender() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("keep-alive", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("expect", "100-continue"),
            ("x-fencing-epoch", "9"),
            ("x-fencing-verified", "1"),
            ("x_fencing_seq", "9"),
            ("x-forwarded-for", "6.6.6.6"),
            ("via", "1.1 other"),
            ("x-other", "kept"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let peer = Peer { address: "10.0.0.1".parse().unwrap(), tls: false };
        let came = Came { peer, host: Some("asked"), version: Version::HTTP_11 };
        let ending = Fields::of(&headers).ending;
        to_sender(
            &mut headers,
            ending,
            &Sender::Unjudged("a"),
            &came,
            HeaderValue::from_static("up:1"),
            &"id".parse().unwrap(),
        );
        let mut left: Vec<_> = headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "host: up:1",
                "via: 1.1 fencegate",
                "via: 1.1 other",
                "x-fencing-account: a",
                "x-forwarded-for: 10.0.0.1",
                "x-forwarded-host: asked",
                "x-forwarded-proto: http",
                "x-other: kept",
                "x-request-id: id",
            ]
        );
    }
}
