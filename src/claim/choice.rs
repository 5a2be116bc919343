//! Which route a request takes: the first that matches its method, its path, its query and its body.
//!
//! The head is always enough where no route asks for a body's fields. It never reads a body itself.

use super::alike::is_same_value;
use super::body::{self, Beginning};
use super::head::{Head, Refusal};
use super::query::{Naming, decode, naming};
use crate::code::Code;
use crate::config::{Captures, Route, Template};

/// A route that a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its place among the routes.
    pub index: usize,
    /// The route.
    pub route: &'a Route,
    /// What its path captured.
    pub captures: Captures<'a>,
}

/// The routes that a request may take, in order. All but the last ask for something in the body; the last may.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// The first.
    pub first: Candidate<'a>,
    /// Those after it.
    pub others: Vec<Candidate<'a>>,
}

/// No route takes a request.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// None has this path, or none its query.
    None,
    /// Those that have its path take these methods.
    Methods(Vec<String>),
    /// It could be read in two ways.
    Ambiguous(Refusal),
}

/// The routes that a head allows.
///
/// # Errors
/// There are none.
pub fn candidates<'a>(
    routes: impl Iterator<Item = &'a Route>,
    method: &str,
    head: &Head<'a>,
) -> Result<Candidates<'a>, NoRoute> {
    let mut found: Option<Candidates<'a>> = None;
    let mut methods: Vec<String> = Vec::new();
    let ambiguous = |code, detail: &'static str| NoRoute::Ambiguous(Refusal::new(code, detail));
    let mut alike: Vec<&Template> = Vec::new();
    for (index, route) in routes.enumerate() {
        let Some(captures) = route.path.matches(head.path) else {
            let could = resembles(route, method) || head.other_method;
            if could && route.path.is_alike(head.path) && has_query(route, head)? {
                alike.push(&route.path);
            }
            continue;
        };
        if route.methods.is_some() && head.other_method {
            let detail =
                "a method that overrides the request's own is not accepted where routes ask for methods";
            return Err(ambiguous(Code::MalformedRequest, detail));
        }
        if let Some(allowed) = &route.methods
            && !takes(route, method)
        {
            let more = allowed.iter().filter(|allowed| !methods.contains(allowed));
            let more: Vec<String> = more.cloned().collect();
            methods.extend(more);
            // Methods have a case, but not for every sender: nothing falls to a later route by it.
            if resembles(route, method) {
                return Err(NoRoute::Methods(methods));
            }
            continue;
        }
        if !has_query(route, head)? {
            continue;
        }
        // Unless the later one is the same in just this spelling.
        if alike.iter().any(|earlier| !earlier.is_alike(route.path.as_str())) {
            return Err(ambiguous(
                Code::MalformedPath,
                "this path is that of an earlier route in another spelling",
            ));
        }
        let candidate = Candidate { index, route, captures };
        match &mut found {
            None => found = Some(Candidates { first: candidate, others: Vec::new() }),
            Some(candidates) => candidates.others.push(candidate),
        }
        if route.json.is_empty() {
            break;
        }
    }
    found.ok_or(if methods.is_empty() { NoRoute::None } else { NoRoute::Methods(methods) })
}

impl<'a> Candidates<'a> {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Candidate<'a>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Whether the body decides.
    #[must_use]
    pub fn needs_body(&self) -> bool {
        !self.first.route.json.is_empty()
    }

    /// The route that a body chooses.
    ///
    /// # Errors
    /// `no_route`, or whatever keeps the body from being read.
    pub fn choose(&self, body: Beginning<'_>) -> Result<Candidate<'a>, Refusal> {
        for candidate in self.iter() {
            if candidate.route.json.is_empty() || body::matches(candidate.route, body)? {
                return Ok(*candidate);
            }
        }
        Err(Refusal::new(Code::NoRoute, ""))
    }
}

/// Whether a route takes a method. Many servers answer a HEAD by doing what a GET does.
fn takes(route: &Route, method: &str) -> bool {
    let takes = |allowed: &String| allowed == method || (method == "HEAD" && allowed == "GET");
    route.methods.as_ref().is_none_or(|allowed| allowed.iter().any(takes))
}

/// Whether it takes it, or the same in another case.
fn resembles(route: &Route, method: &str) -> bool {
    takes(route, method) || takes(route, &method.to_ascii_uppercase())
}

/// Whether a query has what a route asks for, under every reading.
fn has_query(route: &Route, head: &Head<'_>) -> Result<bool, NoRoute> {
    let query = head.query.unwrap_or_default();
    let refuse = |detail| NoRoute::Ambiguous(Refusal::new(Code::MalformedRequest, detail));
    for (key, want) in &route.query {
        let mut found = None;
        for (at, field) in query.split('&').enumerate() {
            for (piece, text) in field.split(';').enumerate() {
                let (name, value) = text.split_once('=').unwrap_or((text, ""));
                match naming(name.as_bytes(), key) {
                    Naming::Other => continue,
                    Naming::Alike => {
                        return Err(refuse("a query key that routes look for is given in another spelling"));
                    }
                    Naming::Exact => {}
                }
                if found.replace((at, value)).is_some() || piece > 0 || field.contains(';') {
                    return Err(refuse(
                        "a query key that routes look for must be given once, and without semicolons",
                    ));
                }
            }
        }
        let Some((_, value)) = found else { return Ok(false) };
        let value = decode(value, true)
            .map_err(|_| refuse("a query key that routes look for has a value that is read in two ways"))?;
        if value != want.as_str() {
            if is_same_value(&value, want) {
                return Err(refuse("a query key that routes look for has a value in another spelling"));
            }
            return Ok(false);
        }
    }
    Ok(true)
}
