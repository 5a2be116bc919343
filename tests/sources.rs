//! Where the account of a request is: each source, lists of them, and which route it takes.
//!
//! Nothing here is about tokens: every request has the holder's, unless its refusal is what is tried.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic in its helpers too")]

mod support;

use std::sync::Arc;

use support::{
    Headers, Holder, PATIENCE, Response, Setup, Shared, Stage, assert_admitted, assert_refused, call, only,
    route, wait_until,
};

static SHARED: Shared = Shared::new();

const FORM: &str = r#"refusal = { status = 200, body = '{"ret":{status},"msg":"{code}: {detail}","who":"{account}/{outcome}/{request_id}"}' }"#;

fn routes(setup: Setup, url: &str) -> Setup {
    let add =
        |setup: Setup, path: &str, account: &str, more: &str| setup.route(&route(url, path, account, more));
    let setup = add(setup, "/json/{*rest}", "\"json:/appId\"", "buffer = \"64KiB\"");
    let setup = add(setup, "/nested", "\"json:/data/guid\"", "");
    let setup = add(setup, "/number", "\"json:/agentid\"", "json_integer = true");
    let setup = add(setup, "/form", "\"form:wxid\"", "buffer = \"1KiB\"");
    let setup = add(setup, "/parts", "\"multipart:wxid\"", "buffer = \"1KiB\"");
    let setup = add(setup, "/bot{account}/{*rest}", "\"path:account\"", "");
    let setup = add(setup, "/bearer", "\"bearer\"", "");
    let setup = add(setup, "/header", "\"header:x-device-id\"", "");
    let setup = add(setup, "/query", "\"query:key\"", "");
    let setup = add(setup, "/list", "[\"query:session\", \"json:/session\", \"form:session\"]", "");
    let setup = add(setup, "/static", "\"static:wxid_0\"", "");
    let setup = add(setup, "/type", "\"query:wxid\"", "query = { type = \"2\" }");
    let setup = add(setup, "/type", "\"static:wxid_0\"", "query = { type = \"3\" }\nmode = \"deny\"");
    let send = "json = { \"/path\" = \"/msg/send_text\", \"/v\" = 2 }";
    let setup = add(setup, "/one-url", "\"json:/data/guid\"", send);
    let setup = add(
        setup,
        "/one-url",
        "\"static:wxid_0\"",
        "mode = \"deny\"\njson = { \"/path\" = \"/msg/recall\" }",
    );
    let small = "max_body = \"1KiB\"\nbuffer = \"1KiB\"\njson = { \"/path\" = \"/msg/small\" }";
    let setup = add(setup, "/one-url", "\"json:/data/guid\"", small);
    let setup = add(setup, "/one-url", "\"static:wxid_0\"", "mode = \"pass\"");
    let setup = add(setup, "/all", "\"query:wxid\"", "methods = [\"GET\"]");
    let setup = add(setup, "/all", "\"query:wxid\"", "mode = \"pass\"");
    let setup = add(setup, "/methods", "\"query:wxid\"", "methods = [\"GET\"]");
    let setup = add(setup, "/methods", "\"json:/wxid\"", "methods = [\"POST\", \"PUT\"]");
    let setup = add(setup, "/guard/send/{wxid}", "\"path:wxid\"", "");
    let setup = add(setup, "/guard/put/{wxid}", "\"path:wxid\"", "methods = [\"PUT\"]");
    let setup = add(setup, "/Guard/send/{wxid}/", "\"path:wxid\"", "");
    let setup = add(setup, "/guard/{*rest}", "\"static:wxid_0\"", "mode = \"pass\"");
    let setup = add(setup, "/ret", "\"json:/appId\"", FORM);
    add(setup, "/ret/{account}", "\"path:account\"", &format!("{FORM}\nupstream_timeout = \"100ms\""))
}

fn stage() -> Arc<Stage> {
    SHARED.stage(routes)
}

fn send(holder: &Holder, target: &str, kind: &str, body: impl AsRef<[u8]>) -> Response {
    let headers = if kind.is_empty() { Headers::none() } else { Headers::none().with("Content-Type", kind) };
    holder.call("POST", target, &headers, body)
}

const JSON: &str = "application/json";
const URLENCODED: &str = "application/x-www-form-urlencoded";
const PARTS: &str = "multipart/form-data; boundary=b-1";

/// A part of a multipart body with the boundary `b-1`.
fn part(name: &str, content: &str) -> String {
    format!("--b-1\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
}

#[test]
fn each_source_finds_the_account_and_the_request_is_forwarded_byte_for_byte() {
    let holder = stage().holder();
    let name = &holder.account;
    let parts = format!("{}{}{}--b-1--\r\n", part("to", "x"), part("wxid", name), part("f", "\0--\r\n"));
    let cases = [
        ("/json/send", JSON, format!(" {{\"id\":12345678901234567890,\"appId\": \"{name}\", \"x\":1.0}}")),
        ("/json/send", "", format!("{{\"appId\":\"{name}\"}}")),
        ("/json/send", "text/plain;charset=UTF-8", format!("{{\"appId\":\"{name}\"}}")),
        ("/nested", JSON, format!("{{\"data\":{{\"guid\":\"\\u0077{}\"}}}}", &name[1..])),
        ("/form", URLENCODED, format!("a=+%zz&wxid={}&b", name.replace('_', "%5F"))),
        ("/parts", PARTS, parts),
    ];
    for (number, (target, kind, body)) in cases.iter().enumerate() {
        assert_admitted(&send(&holder, target, kind, body));
        let request = &holder.wait_for_ended(number + 1)[number];
        assert_eq!((&request.target, request.text()), (&(*target).to_owned(), body.clone()));
        assert_eq!(request.header("content-type").unwrap_or(""), *kind);
    }
    let seen = holder.seen().len();
    assert_admitted(&send(&holder, &format!("/bot{name}/sendMessage"), JSON, "{}"));
    assert_admitted(&send(&holder, &format!("/query?a=1&key={name}"), "", ""));
    for (target, field, value) in
        [("/bearer", "Authorization", format!("Bearer {name}")), ("/header", "X-Device-Id", name.clone())]
    {
        assert_admitted(&holder.call("POST", target, &Headers::none().with(field, value), "x"));
    }
    assert_eq!(holder.seen().len(), seen + 4);
}

#[test]
fn a_whole_number_is_an_account_where_the_route_says_so() {
    let stage = stage();
    stage.bot.lead("1000002");
    let token = stage.bot.token("1000002").with("Content-Type", JSON);
    let ask = |target: &str, body: &str| call(stage.gateway.proxy(), "POST", target, &token, body);
    assert_admitted(&ask("/number", "{\"agentid\":1000002}"));
    assert_admitted(&ask("/number", "{\"agentid\":\"1000002\"}"));
    for other in ["1000002.0", "1000002e0", "9007199254740993", "-0", "true", "null"] {
        let answer = ask("/number", &format!("{{\"agentid\":{other}}}"));
        assert_eq!((answer.status, answer.code().as_deref()), (400, Some("malformed_account")), "{other}");
    }
    let answer = ask("/nested", "{\"data\":{\"guid\":1000002}}");
    assert_eq!(answer.code().as_deref(), Some("malformed_account"));
}

#[test]
fn a_body_that_could_be_read_in_two_ways_is_refused() {
    let holder = stage().holder();
    let other = stage().holder();
    let (name, else_) = (&holder.account, &other.account);
    let refused = |target: &str, kind: &str, body: String, status: u16, code: &str| {
        let what = format!("{target} {kind} {body}");
        assert_refused(&holder, &what, &send(&holder, target, kind, &body), status, code);
        assert!(other.seen().is_empty(), "{what}");
    };
    for body in [
        format!("{{\"appId\":\"{name}\",\"appId\":\"{else_}\"}}"),
        format!("{{\"appId\":\"{name}\",\"\\u0061ppId\":\"{else_}\"}}"),
        format!("{{\"appId\":\"{name}\",\"APPID\":\"{else_}\"}}"),
        format!("\u{feff}{{\"appId\":\"{name}\"}}"),
        format!("{{\"appId\":\"{name}\"}}{{\"appId\":\"{else_}\"}}"),
        format!("{{\"appId\":[\"{name}\"]}}"),
        format!("{{\"appId\":\"{name}\",\"x\":{}{}}}", "[".repeat(200), "]".repeat(200)),
        format!("{{\"app\":\"{name}\"}}"),
        format!("{{\"appId\":\"{name}\",\"app_id\":\"{else_}\"}}"),
        format!("{{\"appId\":\"{name}\",\"__proto__\":{{\"appId\":\"{else_}\"}}}}"),
        "{\"appId\":\"..\"}".to_owned(),
        "{\"appId\":\"\"}".to_owned(),
        format!("{{\"appId\":\"{}\"}}", "x".repeat(1024)),
        String::new(),
    ] {
        refused("/json/send", JSON, body, 400, "malformed_account");
    }
    for body in [
        format!("wxid={name}&wxid={else_}"),
        format!("wxid={name}&wxid[]={else_}"),
        format!("wxid={name};wxid={else_}"),
        format!("wxid={name}&%u0077xid={else_}"),
        format!("wxid={name}&wx%C4%B1d={else_}"),
        "a=1".to_owned(),
    ] {
        refused("/form", URLENCODED, body, 400, "malformed_account");
    }
    for body in [
        format!("{}{}--b-1--\r\n", part("wxid", name), part("wxid", else_)),
        format!("{}--b-1\n\r\n--b-1--\r\n", part("wxid", name)),
        format!("{}{}--b-1--\r\n", part("=?utf-8?B?d3hpZA==?=", else_), part("wxid", name)),
        format!("{}{}--b-1--\r\n", part("wxid", name), part("x", else_).replace("\"x\"", "'wxid'")),
        part("wxid", name),
    ] {
        refused("/parts", PARTS, body, 400, "malformed_account");
    }
    let polyglot = format!("{{\"appId\":\"{name}\",\"x\":\"&appId={else_}&\"}}");
    refused("/json/send", URLENCODED, polyglot.clone(), 415, "unsupported_body");
    refused("/json/send", PARTS, polyglot.clone(), 415, "unsupported_body");
    refused("/json/send", "application/json; charset=utf-16", polyglot, 415, "unsupported_body");
    let untyped = format!("{{\"session\":\"{name}\",\"x\":\"&session={else_}&\"}}");
    refused("/list", "", untyped, 415, "unsupported_body");
    let hidden = format!("multipart/form-data; xboundary=evil; {}", PARTS.split_once("; ").unwrap().1);
    refused("/parts", &hidden, part("wxid", name) + "--b-1--\r\n", 415, "unsupported_body");
    let gzip = Headers::none().with("Content-Encoding", "gzip").with("Content-Type", JSON);
    let answer = holder.call("POST", "/json/send", &gzip, "x");
    assert_refused(&holder, "gzip", &answer, 415, "unsupported_body");
    let twice = Headers::none().with("Content-Type", JSON).with("Content-Type", URLENCODED);
    let answer = holder.call("POST", "/json/send", &twice, "{}");
    assert_refused(&holder, "two types", &answer, 415, "unsupported_body");
}

#[test]
fn a_json_body_beyond_the_buffer_is_too_large_with_and_without_a_length() {
    let holder = stage().holder();
    let body = format!("{{\"appId\":\"{}\",\"x\":\"{}\"}}", holder.account, "x".repeat(64 << 10));
    assert_refused(&holder, "length", &send(&holder, "/json/send", JSON, &body), 413, "body_too_large");
    let mut connection = holder.connect();
    connection.write(holder.head("/json/send", "Host: h\nTransfer-Encoding: chunked")).unwrap();
    let _ = connection.write(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    assert_refused(&holder, "chunked", &connection.read(), 413, "body_too_large");
}

/// A request whose body comes in two pieces, the second once the first has reached the sender.
fn in_two(holder: &Holder, target: &str, kind: &str, first: &str, second: &str) -> Option<Response> {
    let mut connection = holder.connect();
    let length = first.len() + second.len();
    let lines = format!("Host: h\nContent-Type: {kind}\nContent-Length: {length}");
    connection.write(holder.head(target, &lines) + first).unwrap();
    wait_until("the beginning is at the sender", || !holder.seen().is_empty());
    let _ = connection.write(second);
    connection.read_within(PATIENCE).ok()
}

#[test]
fn beyond_the_buffer_a_field_is_found_once_or_the_send_is_aborted() {
    let stage = stage();
    let fill = "x".repeat(4000);
    for (target, kind, field, last) in
        [("/form", URLENCODED, "form", ""), ("/parts", PARTS, "parts", "--b-1--\r\n")]
    {
        let holder = stage.holder();
        let other = stage.holder();
        let piece = |name: &str, value: &str| {
            if field == "form" { format!("{name}={value}&") } else { part(name, value) }
        };
        let first = piece("wxid", &holder.account) + &piece("a", &fill);
        let second = piece("b", &fill) + last;
        let answer = in_two(&holder, target, kind, &first, &second).unwrap();
        assert_admitted(&answer);
        assert_eq!(only(&holder).text(), format!("{first}{second}"));

        let holder = stage.holder();
        let first = piece("wxid", &holder.account) + &piece("a", &fill);
        let second = piece("b", &fill) + &piece("wxid", &other.account) + last;
        let answer = in_two(&holder, target, kind, &first, &second).unwrap();
        assert_eq!((answer.status, answer.code().as_deref()), (502, Some("upstream_failed")), "{field}");
        assert_eq!(answer.header("x-fencing-outcome"), Some("unknown"));
        let request = holder.wait_for_ended(1).remove(0);
        assert!(request.truncated && !request.whole, "{field}: the sender sees a broken message");
        assert!(!request.text().contains(&other.account), "{field}: what names another account is withheld");

        let holder = stage.holder();
        let late = piece("a", &fill.repeat(200)) + &piece("wxid", &holder.account) + last;
        assert_refused(&holder, field, &send(&holder, target, kind, late), 400, "malformed_account");
    }
    // A key without a value, as the very last thing.
    let holder = stage.holder();
    let first = format!("wxid={}&a={fill}&b={fill}", holder.account);
    let answer = in_two(&holder, "/form", URLENCODED, &first, "&wxid").unwrap();
    assert_eq!(answer.code().as_deref(), Some("upstream_failed"));
    assert!(holder.wait_for_ended(1)[0].truncated);
}

#[test]
fn all_sources_that_are_present_must_agree() {
    let holder = stage().holder();
    let name = &holder.account;
    let with_query = format!("/list?session={name}");
    assert_admitted(&holder.call("GET", &with_query, &Headers::none(), ""));
    assert_admitted(&send(&holder, &with_query, JSON, format!("{{\"session\":\"{name}\"}}")));
    assert_admitted(&send(&holder, &with_query, JSON, "{}"));
    assert_admitted(&send(&holder, "/list", JSON, format!("{{\"session\":\"{name}\"}}")));
    assert_admitted(&send(&holder, "/list", URLENCODED, format!("session={name}")));
    let other = stage().holder();
    let differ = |target: &str, kind: &str, body: String| {
        let answer = send(&other, target, kind, &body);
        assert_refused(&other, &body, &answer, 400, "malformed_account");
    };
    differ(&format!("/list?session={}", other.account), JSON, format!("{{\"session\":\"{name}\"}}"));
    differ(&format!("/list?session={}", other.account), URLENCODED, format!("session={name}"));
    differ("/list", JSON, "{}".to_owned());
}

#[test]
fn a_static_account_needs_nothing_of_the_request() {
    let stage = stage();
    let _first = stage.holder();
    let answer = call(stage.gateway.proxy(), "POST", "/static", &stage.bot.token("wxid_0"), "x");
    assert_admitted(&answer);
}

#[test]
fn what_the_head_alone_decides_is_refused_before_the_body_is_read() {
    let holder = stage().holder();
    let refused = |target: &str, lines: &str, token: bool, status: u16, code: &str| {
        let mut connection = holder.connect();
        let lines = format!("Host: h\nContent-Length: 1000\n{lines}");
        let head = holder.head(target, &lines);
        let head = if token { head } else { head.replace("X-Fencing-Seq", "X-Other") };
        connection.write(head).unwrap();
        assert_refused(&holder, code, &connection.read(), status, code);
    };
    refused("/json/send", "Content-Type: application/json", false, 428, "missing_token");
    refused("/json/send", "Content-Type: application/xml", true, 415, "unsupported_body");
    refused("/json/send", "Content-Encoding: gzip", true, 415, "unsupported_body");
    refused("/list?session=a&session=b", "", true, 400, "malformed_account");
    refused("/type?type=3", "", true, 403, "denied");
    refused("/type?type=4", "", true, 404, "no_route");
    refused("/type?type=2&type=3", "", true, 400, "malformed_request");
    refused("/type?Type=2&wxid=a", "", true, 400, "malformed_request");
    refused("/type?type=02&wxid=a", "", true, 400, "malformed_request");
    refused("/type?type=2x&wxid=a", "", true, 400, "malformed_request");
}

#[test]
fn a_path_that_senders_take_for_an_earlier_routes_does_not_get_past_it() {
    let holder = stage().holder();
    let name = &holder.account;
    let ask = |target: &str| holder.call("POST", target, &Headers::none(), "x");
    assert_admitted(&ask(&format!("/guard/send/{name}")));
    assert_eq!(ask("/guard/other").header("x-fencing-verdict"), Some("passed"));
    let before = holder.seen().len();
    assert_admitted(&ask(&format!("/Guard/send/{name}/")));
    let before = before + 1;
    for other in ["/guard/Send/A", "/guard/s%65nd/A", "/guard/send/A/", "/guard/send;x/A", "/guard/send/A;b"]
    {
        let answer = ask(&other.replace('A', name));
        let code = if other.ends_with(";b") { "malformed_account" } else { "malformed_path" };
        assert_eq!((answer.status, answer.code().as_deref()), (400, Some(code)), "{other}");
    }
    assert_eq!(holder.seen().len(), before);
}

#[test]
fn a_method_beside_the_requests_own_is_refused_where_routes_ask_for_methods() {
    let holder = stage().holder();
    let target = format!("/methods?wxid={}", holder.account);
    for name in ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"] {
        let answer = holder.call("GET", &target, &Headers::none().with(name, "POST"), "");
        assert_refused(&holder, name, &answer, 400, "malformed_request");
    }
    let answer = holder.call("GET", &format!("{target}&_method=POST"), &Headers::none(), "");
    assert_refused(&holder, "_method", &answer, 400, "malformed_request");
    let put = Headers::none().with("X-HTTP-Method-Override", "PUT");
    let answer = holder.call("POST", &format!("/guard/Put/{}", holder.account), &put, "");
    assert_refused(&holder, "another spelling", &answer, 400, "malformed_path");
    let same = Headers::none().with("X-HTTP-Method-Override", "get");
    assert_admitted(&holder.call("GET", &target, &same, ""));
    let other = holder.stage.holder();
    let elsewhere = Headers::none().with("X-HTTP-Method-Override", "PUT");
    assert_admitted(&other.call("POST", &format!("/query?key={}", other.account), &elsewhere, ""));
}

#[test]
fn what_says_how_a_body_is_read_neither_ends_here_nor_has_two_spellings() {
    let holder = stage().holder();
    let name = &holder.account;
    // A form to whoever is told so, JSON to whoever looks.
    let both = format!("{{\"session\":\"other\",\"x\":\"&session={name}&\"}}");
    for (field, value) in [
        ("Connection", "Content-Type"),
        ("Connection", "keep-alive, content-encoding"),
        ("Content_Type", JSON),
        ("content.length", "3"),
        ("Transfer_Encoding", "chunked"),
        ("X-Original-URL", "/list?session=other"),
        ("X-Rewrite-URL", "/other"),
    ] {
        let headers = Headers::none().with("Content-Type", URLENCODED).with(field, value);
        let answer = holder.call("POST", "/list", &headers, &both);
        assert_refused(&holder, field, &answer, 400, "malformed_request");
    }
    let own = Headers::none().with("Content-Type", URLENCODED).with("X-Original-URL", "/list");
    assert_admitted(&holder.call("POST", "/list", &own, format!("session={name}")));
}

#[test]
fn the_query_says_of_a_forms_field_what_the_form_says() {
    let stage = stage();
    for (path, kind) in [("/form", URLENCODED), ("/parts", PARTS)] {
        let (holder, other) = (stage.holder(), stage.holder());
        let body = |name: &str| match path {
            "/form" => format!("wxid={name}"),
            _ => part("wxid", name) + "--b-1--\r\n",
        };
        let ask = |query: &str| send(&holder, &format!("{path}?{query}"), kind, body(&holder.account));
        for query in [format!("wxid={}", other.account), "wxid=".to_owned(), "WXID=x".to_owned()] {
            assert_refused(&holder, &query, &ask(&query), 400, "malformed_account");
        }
        let none = if path == "/form" { "a=b".to_owned() } else { part("a", "b") + "--b-1--\r\n" };
        let answer = send(&holder, &format!("{path}?wxid={}", holder.account), kind, none);
        assert_refused(&holder, "only in the query", &answer, 400, "malformed_account");
        assert_admitted(&ask(&format!("wxid={}", holder.account)));
        assert_admitted(&ask("to=x"));
    }
}

#[test]
fn a_route_is_chosen_by_method_query_and_body() {
    let stage = stage();
    let first = stage.holder();
    let holder = if first.account == "wxid_0" { stage.holder() } else { first };
    let name = &holder.account;
    assert_admitted(&send(&holder, &format!("/type?type=2&wxid={name}"), "", "x"));
    assert_admitted(&holder.call("GET", &format!("/methods?wxid={name}"), &Headers::none(), ""));
    assert_admitted(&send(&holder, "/methods", JSON, format!("{{\"wxid\":\"{name}\"}}")));
    let all = format!("/all?wxid={name}");
    for (method, verdict) in [
        ("GET", "admitted"),
        ("HEAD", "admitted"),
        ("get", "method_not_allowed"),
        ("Head", "method_not_allowed"),
        ("PUT", "passed"),
    ] {
        let answer = holder.call(method, &all, &Headers::none(), "");
        assert_eq!(answer.header("x-fencing-verdict"), Some(verdict), "{method}");
    }
    let answer = holder.call("DELETE", "/methods", &Headers::none(), "");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, POST, PUT")));
    let one = |body: &str| send(&holder, "/one-url", JSON, body);
    let sent = format!("{{\"path\":\"/msg/send_text\",\"v\":2,\"data\":{{\"guid\":\"{name}\"}}}}");
    assert_admitted(&one(&sent));
    let before = holder.seen().len();
    assert_eq!(one("{\"path\":\"/msg/recall\"}").code().as_deref(), Some("denied"));
    for body in ["{\"path\":\"/login\"}", "{\"path\":\"/msg/send_text\",\"v\":3}", "{\"x\":[]}", ""] {
        let answer = one(body);
        assert_eq!((answer.status, answer.header("x-fencing-verdict")), (200, Some("passed")), "{body}");
    }
    for body in [
        "{\"path\":\"/login\",\"path\":\"/msg/send_text\"}",
        "{\"path\":\"/login\",\"Path\":\"/msg/send_text\"}",
        "{\"path\":\"/login\"",
        "path=/login",
        "{\"path\":[\"/msg/send_text\"],\"v\":2}",
        "{\"path\":\"/Msg/send_text/\",\"v\":2}",
        "{\"path\":\" /msg/send_text\",\"v\":2}",
        "{\"path\":\"/msg/send_text\",\"v\":\"2\"}",
        "{\"path\":\"/msg/send_text\",\"v\":2.0}",
        "{\"path\":\"/login\",\"_path\":\"/msg/send_text\",\"v\":2}",
    ] {
        let answer = one(body);
        assert_eq!((answer.status, answer.code().as_deref()), (400, Some("malformed_request")), "{body}");
    }
    // The body is read before it is known whose bounds it has.
    let small = |more: usize| {
        format!("{{\"path\":\"/msg/small\",\"data\":{{\"guid\":\"{name}\"}},\"x\":\"{}\"}}", "x".repeat(more))
    };
    let chunked = |body: &str| {
        let headers = Headers::none().with("Content-Type", JSON).with("Transfer-Encoding", "chunked");
        holder.call("POST", "/one-url", &headers, format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
    };
    for large in [one(&small(2000)), chunked(&small(2000))] {
        assert_eq!((large.status, large.code().as_deref()), (413, Some("body_too_large")));
    }
    let answer = send(&holder, "/one-url", URLENCODED, "path=/msg/send_text");
    assert_eq!(answer.code().as_deref(), Some("malformed_request"));
    let no_account = "{\"path\":\"/msg/send_text\",\"v\":2}";
    assert_eq!(one(no_account).code().as_deref(), Some("malformed_account"));
    assert_eq!(holder.seen().len(), before);
    assert_admitted(&one(&small(100)));
    assert_admitted(&chunked(&small(100)));
}

#[test]
fn a_refusal_takes_its_routes_form_and_its_headers_stay_true() {
    let holder = stage().holder();
    let check = |answer: &Response, status: u16, code: &str, outcome: &str, account: &str| {
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(JSON)), "{}", answer.text());
        assert_eq!(answer.header("x-fencing-verdict"), Some(code));
        assert_eq!(answer.header("x-fencing-outcome"), Some(outcome));
        let body = answer.json();
        assert_eq!(body["ret"], status);
        assert!(body["msg"].as_str().unwrap().starts_with(&format!("{code}: ")), "{body}");
        let id = answer.header("x-request-id").unwrap();
        assert_eq!(body["who"], format!("{account}/{outcome}/{id}"));
    };
    check(&send(&holder, "/ret", JSON, "{\"appId\":\"a/b\"}"), 400, "malformed_account", "not_sent", "");
    check(&send(&holder, "/ret", "application/xml", "x"), 415, "unsupported_body", "not_sent", "");
    let body = format!("{{\"appId\":\"{}\"}}", holder.account);
    let stale =
        holder.stage.bot.token(&holder.account).without("x-fencing-session").with("X-Fencing-Session", "1");
    let answer = call(holder.stage.gateway.proxy(), "POST", "/ret", &stale, &body);
    check(&answer, 409, "session_mismatch", "not_sent", &holder.account);
    let answer = call(holder.stage.gateway.proxy(), "POST", "/ret", &Headers::none(), &body);
    check(&answer, 428, "missing_token", "not_sent", "");
    assert!(holder.seen().is_empty());
    holder.answers(|_| support::Answer::ok().after(PATIENCE));
    let answer = send(&holder, &format!("/ret/{}", holder.account), JSON, "{}");
    check(&answer, 504, "upstream_timeout", "unknown", &holder.account);
    // Where no route was found, nobody knows its form.
    assert_eq!(
        holder.call("POST", "/nowhere", &Headers::none(), "").header("content-type"),
        Some("application/problem+json")
    );
}
