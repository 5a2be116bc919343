//! What a request claims on a route, in the order in which it becomes known: its head, then its body.
//!
//! It knows no registry and no keys; whoever uses it asks those between the two.

use std::borrow::Cow;

use http::request::Parts;

use super::account::{self, Found};
use super::body::{self, Beginning, Kind, Rest};
use super::choice::Candidate;
use super::fields::Fields;
use super::head::{Head, Refusal};
use super::token;
use crate::code::Code;
use crate::config::{Mode, Source};
use crate::fence::token::Claim;

/// What is known of a request before its body.
#[derive(Clone, Copy, Debug)]
pub struct Ahead<'h, 'a> {
    /// Its checked head.
    pub head: &'h Head<'a>,
    /// The same as it came.
    pub parts: &'a Parts,
    /// Its fields.
    pub fields: &'h Fields<'a>,
    /// Whether a body follows.
    pub has_body: bool,
}

/// What a request claims.
#[derive(Debug)]
pub struct Reading<'a> {
    /// The route it takes, or may take.
    pub candidate: Candidate<'a>,
    /// Its account's name; `None` until its body is in.
    pub account: Option<Cow<'a, str>>,
    /// Where the account was, as far as it is known.
    pub source: Option<&'a Source>,
    /// Its token; `None` where there is none and none is needed.
    pub claim: Option<Claim>,
    /// How its body is read, until it was.
    pub kind: Option<Kind>,
}

/// A refusal by the head alone, and the account if it is known.
#[derive(Debug)]
pub struct Refused<'a> {
    /// The refusal.
    pub refusal: Refusal,
    /// The account.
    pub account: Option<Cow<'a, str>>,
}

impl From<Refusal> for Refused<'_> {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, account: None }
    }
}

impl<'a> Reading<'a> {
    /// Reads a head.
    ///
    /// # Errors
    /// What the head alone refuses.
    pub fn of_head(candidate: &Candidate<'a>, ahead: Ahead<'_, 'a>) -> Result<Self, Refused<'a>> {
        let Candidate { route, captures, .. } = candidate;
        let Ahead { head, parts, fields, has_body } = ahead;
        if route.mode == Mode::Deny {
            return Err(Refusal::new(Code::Denied, "").into());
        }
        let found = account::in_head(route, captures, head, &parts.headers)?;
        let kind =
            if has_body && body::is_read_by(route) { Some(body::kind(route, &parts.headers)?) } else { None };
        let source = found.as_ref().map(|found| found.source);
        let account = match &kind {
            Some(_) => None,
            None => Some(account::name(route, found)?),
        };
        let claim = match token::token(fields, route.seq_digits) {
            Ok(claim) => Some(claim),
            // Parsing is strict in every mode; a token that is not there is only missed where it counts.
            Err(refusal) if route.mode == Mode::Enforce || refusal.code == Code::MalformedToken => {
                return Err(Refused { refusal, account });
            }
            Err(_) => None,
        };
        let most = if kind == Some(Kind::Json) { route.max_body.min(route.buffer) } else { route.max_body };
        if fields.announced().is_some_and(|length| length > most) {
            let detail = format!("the body may have at most {most} bytes");
            return Err(Refused { refusal: Refusal::new(Code::BodyTooLarge, detail), account });
        }
        Ok(Self { candidate: *candidate, account, source, claim, kind })
    }

    /// Reads the beginning of the body, where it is read at all; what looks through the rest.
    ///
    /// # Errors
    /// It names no account, or not one.
    pub fn of_body(&mut self, body: Beginning<'_>, ahead: Ahead<'_, 'a>) -> Result<Option<Rest>, Refusal> {
        let Some(kind) = self.kind.take() else { return Ok(None) };
        let Candidate { route, captures, .. } = &self.candidate;
        let (named, rest) = body::read(route, &kind, body)?;
        account::beside_query(route, &named, &kind, ahead.head)?;
        let mut found: Option<Found<'a>> =
            account::in_head(route, captures, ahead.head, &ahead.parts.headers)?;
        for more in named {
            found = Some(account::agree(route, found, more)?);
        }
        self.source = found.as_ref().map(|found| found.source);
        self.account = Some(account::name(route, found)?);
        Ok(rest)
    }
}
