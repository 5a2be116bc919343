//! What a request claims: its token, its account, the route that takes it, and the whole shape of a refusal.
//!
//! Nothing here is about framing or about what the sender gets beside the claim.

mod support;

use std::sync::Arc;

use serde_json::json;
use support::{
    Headers, Setup, Shared, Stage, answer_to, assert_admitted, assert_bytes_refused, assert_refused, call,
    named_route, only, route,
};

static SHARED: Shared = Shared::new();

fn routes(setup: Setup, url: &str) -> Setup {
    let everywhere = "[\"path:account\", \"query:key\", \"header:x-device-id\"]";
    setup
        .route(&named_route(url, "wx", ""))
        .route(&route(url, "/three/{account}/{*rest}", everywhere, ""))
        .route(&route(url, "/query/{*rest}", "\"query:key\"", ""))
        .route(&route(url, "/header/{*rest}", "\"header:x-device-id\"", ""))
        .route(&route(url, "/two/{*rest}", "[\"query:key\", \"header:x-device-id\"]", ""))
        .route(&named_route(url, "post", "methods = [\"POST\", \"PUT\"]"))
        .route(&format!("path = \"/deny/{{*rest}}\"\nupstream = \"{url}\"\nmode = \"deny\""))
}

fn stage() -> Arc<Stage> {
    SHARED.stage(routes)
}

// Tokens

#[test]
fn a_token_must_be_there_and_be_one() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    let (seq, session) = (bot.seq(&holder.account).to_string(), bot.session_id().to_string());
    let ask = |headers: &Headers, status: u16, code: &str| {
        let response = call(holder.stage.gateway.proxy(), "POST", &holder.path(), headers, "x");
        let problem = assert_refused(&holder, &format!("{headers:?}"), &response, status, code);
        assert_eq!(problem["account"], holder.account, "{headers:?}");
        assert!(problem.get("presented").is_none() && problem.get("current").is_none());
    };
    let token = |seq: &str, session: &str| {
        Headers::none().with("X-Fencing-Seq", seq).with("X-Fencing-Session", session)
    };
    let none = Headers::none();
    ask(&none, 428, "missing_token");
    ask(&none.clone().with("X-Fencing-Seq", &seq), 428, "missing_token");
    ask(&none.clone().with("X-Fencing-Session", &session), 428, "missing_token");
    ask(&none.clone().with("X_Fencing_Seq", &seq).with("X_Fencing_Session", &session), 428, "missing_token");
    ask(&none.clone().with("X_Fencing-Seq", &seq).with("X-Fencing-Session", &session), 428, "missing_token");
    let whole = token(&seq, &session);
    ask(&whole.clone().with("X-Fencing-Seq", &seq), 400, "malformed_token");
    ask(&whole.clone().with("x-fencing-session", &session), 400, "malformed_token");
    ask(&whole.clone().with("X-Fencing-Epoch", "1").with("X-Fencing-Epoch", "1"), 400, "malformed_token");
    ask(
        &whole.clone().with("X-Fencing-Instance", "a").with("X-Fencing-Instance", "a"),
        400,
        "malformed_token",
    );
    for bad in [
        "7,8",
        "7, 7",
        "+7",
        "-0",
        "-1",
        "0x7",
        "7.0",
        "7e0",
        "",
        "7 7",
        "\u{667}",
        "\u{ff17}",
        "00000000007",
        "9223372036854775808",
        "18446744073709551616",
        "7;",
        "\"7\"",
        "seven",
        "7_0",
        "7\u{a0}",
    ] {
        ask(&token(bad, &session), 400, "malformed_token");
    }
    for bad in [
        "",
        "-",
        "--1",
        "+1",
        "-0",
        "0x",
        "0xg",
        "0x10000000000000000",
        "ff",
        "1.0",
        "1e3",
        "1,1",
        "1 1",
        "9223372036854775808",
        "-9223372036854775809",
        "0b1",
        "-0x1",
        "\u{ff11}",
        "\u{661}",
        "1L",
        "0x 1",
    ] {
        ask(&token(&seq, bad), 400, "malformed_token");
    }
    for bad in ["", "-1", "0x1", "1.0", "9223372036854775808", "\u{ff11}", "1 1", "1,2"] {
        ask(&whole.clone().with("X-Fencing-Epoch", bad), 400, "malformed_token");
    }
    let long = "x".repeat(257);
    for bad in ["", "a b", "%zz", "%4", "%ff", "\u{e4}", "a\tb", long.as_str()] {
        ask(&whole.clone().with("X-Fencing-Instance", bad), 400, "malformed_token");
    }
}

#[test]
fn a_token_may_be_spelt_in_every_way_the_contract_allows() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    let (seq, session) = (bot.seq(&holder.account), bot.session_id());
    let hex = format!("{session:x}");
    for (seq, session) in [
        (format!("{seq:010}"), session.to_string()),
        (format!("{seq}"), format!("0x{hex}")),
        (format!("{seq}"), format!("0x{hex:0>16}")),
        (format!("{seq}"), format!("0x{}", hex.to_uppercase())),
        (format!("{seq}"), format!("{session:020}").trim_start_matches('0').to_owned()),
    ] {
        let headers =
            Headers::none().with("x-fencing-SEQ", &seq).with("X-FENCING-SESSION", format!(" \t{session} "));
        let response = call(holder.stage.gateway.proxy(), "POST", &holder.path(), &headers, "x");
        assert_eq!(response.status, 200, "{seq} {session}");
        let request = holder.seen().pop().unwrap();
        assert_eq!(request.header("x-fencing-seq"), Some(bot.seq(&holder.account).to_string().as_str()));
        assert_eq!(request.header("x-fencing-session"), Some(bot.session_id().to_string().as_str()));
    }
}

#[test]
fn a_refusal_by_the_view_has_the_whole_shape_and_never_the_holders_session() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    let (seq, session) = (bot.seq(&holder.account), bot.session_id());
    bot.delete_candidate(&holder.account);
    bot.drop_active(&holder.account);
    let seq = seq + { bot.lead(&holder.account) - seq };
    let refused = |headers: &Headers, code: &str| {
        let headers = headers.clone().with("X-Request-Id", "mine");
        let response = call(holder.stage.gateway.proxy(), "POST", &holder.path(), &headers, "x");
        let problem = assert_refused(&holder, code, &response, 409, code);
        assert!(!response.headers.has("retry-after") && !response.headers.has("allow"));
        assert!(!response.text().contains(&session.to_string()), "{}", response.text());
        let mut keys: Vec<_> = problem.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "account",
                "code",
                "current",
                "detail",
                "outcome",
                "presented",
                "request_id",
                "status",
                "title",
                "type"
            ]
        );
        assert_eq!((&problem["account"], &problem["request_id"]), (&json!(holder.account), &json!("mine")));
        let current = json!({"seq": seq, "instance_id": "host-a", "active_since": 1_699_999_999_000_i64});
        assert_eq!(problem["current"], current);
        problem["presented"].clone()
    };
    let token = |seq: &str, session: &str| {
        Headers::none().with("X-Fencing-Seq", seq).with("X-Fencing-Session", session)
    };
    assert_eq!(refused(&token("000", "0x00AB"), "stale_token"), json!({"seq": 0, "session": "0xab"}));
    let ahead = token("2147483647", "-1");
    assert_eq!(refused(&ahead, "not_holder"), json!({"seq": 2_147_483_647, "session": "0xffffffffffffffff"}));
    assert_eq!(
        refused(&token("9999999999", "1"), "not_holder"),
        json!({"seq": 9_999_999_999_u64, "session": "0x1"})
    );
    let same = |session: i64| token(&seq.to_string(), &session.to_string());
    assert_eq!(refused(&same(i64::MIN), "session_mismatch")["session"], "0x8000000000000000");
    let hex = format!("0x{session:x}");
    let mine = same(session);
    assert_eq!(
        refused(&mine.clone().with("X-Fencing-Instance", "host-b"), "instance_mismatch")["session"],
        hex
    );
    assert_eq!(refused(&mine.with("X-Fencing-Epoch", "1"), "epoch_mismatch")["seq"], seq);
}

#[test]
fn an_account_without_a_holder_or_an_election_is_told_apart() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    bot.drop_active(&holder.account);
    let response = holder.send("x");
    let problem = assert_refused(&holder, "vacant", &response, 409, "no_holder");
    assert!(problem.get("current").is_none());
    assert_eq!(problem["presented"]["seq"], bot.seq(&holder.account));
    let target = format!("/wx/{}-unknown/send", holder.account);
    let response = holder.call("POST", &target, &Headers::none(), "x");
    let problem = assert_refused(&holder, "unknown", &response, 404, "unknown_account");
    assert_eq!(problem["account"], format!("{}-unknown", holder.account));
    bot.take_with(&holder.account, "{}");
    assert_refused(&holder, "invalid", &holder.send("x"), 409, "invalid_holder");
}

// Accounts

#[test]
fn an_account_is_a_plain_name_and_decoded_once() {
    let holder = stage().holder();
    let long = "x".repeat(129);
    let kilobyte = "x".repeat(1024);
    for bad in [
        "a%20b",
        "a%2541",
        "%E4%BD%A0",
        "a%0Ab",
        "a%1Bb",
        "a;x",
        "a,b",
        "a%2Cb",
        "a*b",
        "%E2%80%AEa",
        "a%7Fb",
        "a'b",
        "a%FFb",
        "a(b",
        "a!b",
        "a$b",
        "a&b",
        "a=b",
        long.as_str(),
        kilobyte.as_str(),
    ] {
        let head = holder.head(&format!("/wx/{bad}/send"), "Host: h\nContent-Length: 0");
        assert_bytes_refused(&holder, head, 400, "malformed_account");
    }
    for dots in ["..", ".", "%2e%2e", "%2E", "a%2Fb"] {
        let head = holder.head(&format!("/wx/{dots}/send"), "Host: h\nContent-Length: 0");
        assert_bytes_refused(&holder, head, 400, "malformed_path");
    }
    assert_bytes_refused(
        &holder,
        holder.head("/wx//send", "Host: h\nContent-Length: 0"),
        400,
        "malformed_path",
    );
    for key in ["..", ".", "", "%2E%2E", "a%20b", "a+b", "a%00b", kilobyte.as_str()] {
        let head = holder.head(&format!("/query/send?key={key}"), "Host: h\nContent-Length: 0");
        assert_bytes_refused(&holder, head, 400, "malformed_account");
    }
    for value in ["..", "", "a b", "\u{e4}", "a,b", "a%41", kilobyte.as_str()] {
        let head = holder.head("/header/send", &format!("Host: h\nContent-Length: 0\nX-Device-Id: {value}"));
        assert_bytes_refused(&holder, head, 400, "malformed_account");
    }
    // The longest name is looked for.
    let response = holder.call("POST", &format!("/wx/{}/send", "x".repeat(128)), &Headers::none(), "");
    assert_eq!(response.code().as_deref(), Some("unknown_account"));
    // One escape too many is decoded, and the sender gets the path as it was.
    let target = format!("/wx/{}/send", holder.account.replace('_', "%5f"));
    assert_admitted(&holder.call("POST", &target, &Headers::none(), "x"));
    let request = only(&holder);
    assert_eq!(
        (&request.target, request.header("x-fencing-account")),
        (&target, Some(holder.account.as_str()))
    );
}

#[test]
fn all_places_that_name_the_account_must_agree() {
    let holder = stage().holder();
    let account = &holder.account;
    let ask =
        |target: &str, lines: &str| holder.head(target, &format!("Host: h\nContent-Length: 0\n{lines}"));
    for (target, lines) in [
        (format!("/three/{account}/x?key=other"), String::new()),
        (format!("/three/{account}/x"), "X-Device-Id: other".to_owned()),
        (format!("/three/other/x?key={account}"), format!("X-Device-Id: {account}")),
        (format!("/three/{account}/x?key={account}"), "X-Device-Id: OTHER".to_owned()),
        (format!("/three/{account}/x?key="), String::new()),
        (format!("/three/{account}/x?key"), String::new()),
        (format!("/three/{account}/x?key={account}&key={account}"), String::new()),
        (format!("/three/{account}/x?key={account}&k%65y={account}"), String::new()),
        (format!("/three/{account}/x?key={account};key=other"), String::new()),
        (format!("/three/{account}/x"), format!("X-Device-Id: {account}\nX-Device-Id: {account}")),
        (format!("/three/{account}/x"), format!("X-Device-Id: {account}\nX_Device_Id: other")),
        (format!("/three/{account}/x"), "X_Device-Id: other".to_owned()),
        ("/query/x".to_owned(), String::new()),
        ("/query/x?KEY=a".to_owned(), String::new()),
        ("/query/x?key=A&key=B".to_owned(), String::new()),
        ("/header/x".to_owned(), String::new()),
        ("/header/x".to_owned(), format!("X-Device-Id: {account}\nX-Device-Id: {account}")),
        ("/two/x".to_owned(), String::new()),
        ("/two/x?key=a".to_owned(), "X-Device-Id: b".to_owned()),
    ] {
        assert_bytes_refused(&holder, ask(&target, &lines), 400, "malformed_account");
    }
    let good = [
        (format!("/three/{account}/x"), String::new()),
        (format!("/three/{account}/x?key={account}"), format!("X-Device-Id: {account}")),
        (format!("/three/{account}/x?a=b&ke%79={account}&c"), String::new()),
        (format!("/query/x?key={account}"), "X-Device-Id: other".to_owned()),
        ("/header/x?key=other".to_owned(), format!("x-device-ID:\t{account} ")),
        ("/two/x".to_owned(), format!("X-Device-Id: {account}")),
    ];
    for (count, (target, lines)) in good.iter().enumerate() {
        let answer = answer_to(&holder, ask(target, lines)).unwrap();
        assert_eq!(answer.status, 200, "{target} {lines}: {}", answer.text());
        let seen = holder.seen();
        assert_eq!((seen.len(), &seen[count].target), (count + 1, target));
    }
}

// Routes

#[test]
fn a_route_refuses_what_it_does_not_take() {
    let holder = stage().holder();
    let target = format!("/post/{}/x", holder.account);
    for method in ["GET", "DELETE", "post", "HEAD"] {
        let response = holder.call(method, &target, &Headers::none(), "");
        assert_eq!((response.status, response.header("allow")), (405, Some("POST, PUT")), "{method}");
        assert_eq!(response.header("x-fencing-verdict"), Some("method_not_allowed"));
        assert_eq!(response.header("x-fencing-outcome"), Some("not_sent"));
        assert_eq!(response.body.is_empty(), method == "HEAD");
    }
    let response = holder.call("POST", "/deny/anything", &Headers::none(), "x");
    assert_refused(&holder, "deny", &response, 403, "denied");
    for lost in ["/", "/nowhere", "/WX/a/b", "/wx/a", "/wx/a/", "/wx", "/w%78/a/b", "/%77x/a/b"] {
        let response = holder.call("POST", lost, &Headers::none(), "x");
        let problem = assert_refused(&holder, lost, &response, 404, "no_route");
        assert!(problem.get("account").is_none());
    }
    assert_admitted(&holder.call("PUT", &target, &Headers::none(), "x"));
}

#[test]
fn the_admin_listener_cannot_be_reached_through_the_proxy_listener() {
    let holder = stage().holder();
    for path in ["/metrics", "/healthz", "/readyz", "/v1/accounts", "/v1/view"] {
        let response = holder.call("GET", path, &Headers::none(), "");
        assert_refused(&holder, path, &response, 404, "no_route");
    }
}
