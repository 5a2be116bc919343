//! `fencegate init` and `fencegate explain`: each preset in front of a request as its sender's clients send it.
//!
//! Requests are those of the senders' public documents; no sender itself is here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic in its helpers too")]

mod support;

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::gateway::{BINARY, fencegate};
use support::{
    Ensemble, Folder, Gateway, Headers, Instance, Sender, Setup, assert_admitted, call, named_route, route,
};

/// A request as clients of a sender send it.
struct Case {
    preset: &'static str,
    /// What the client names.
    identity: &'static str,
    /// Whether its name in the elections is its hash.
    hashed: bool,
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    /// What a refusal looks like to the client: its status, and what its body contains.
    refusal: (u16, &'static str),
}

const PROBLEM: (u16, &str) = (428, "\"code\":\"missing_token\"");
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];

const CASES: [Case; 24] = [
    Case {
        preset: "gewe",
        identity: "wx_wR_U4zPj2M_OTS3BCyoE4",
        hashed: false,
        method: "POST",
        target: "/v2/api/message/postText",
        headers: &[("X-GEWE-TOKEN", "ad2f6f69"), ("Content-Type", "application/json")],
        body: r#"{"appId":"wx_wR_U4zPj2M_OTS3BCyoE4","toWxid":"34757816141@chatroom","ats":"wxid_phyyedw9xap22","content":"@猿猴 \ud83d"}"#,
        refusal: (200, r#"{"ret":500,"msg":"missing_token: "#),
    },
    Case {
        preset: "gewe",
        identity: "wx_1",
        hashed: false,
        method: "POST",
        target: "/gewe/v2/api/message/revokeMsg",
        headers: JSON,
        body: r#"{"appId":"wx_1","toWxid":"wxid_x","msgId":769533242,"newMsgId":2698448128437297000,"createTime":"1704163145"}"#,
        refusal: (200, "\"ret\":500"),
    },
    Case {
        preset: "wechatpadpro",
        identity: "HBpEnbtj9BJZ",
        hashed: true,
        method: "POST",
        target: "/message/SendTextMessage?key=HBpEnbtj9BJZ",
        headers: JSON,
        body: r#"{"MsgItem":[{"AtWxIDList":[],"ImageContent":"","MsgType":1,"TextContent":"hi","ToUserName":"filehelper"}]}"#,
        refusal: (200, r#""Success":false"#),
    },
    Case {
        preset: "wkteam",
        identity: "0000016e-63eb-f319-0001-ed01076abf1f",
        hashed: false,
        method: "POST",
        target: "/sendText",
        headers: &[("Authorization", "login-token"), ("Content-Type", "application/json")],
        body: r#"{"wId":"0000016e-63eb-f319-0001-ed01076abf1f","wcId":"azhichao","content":"hello"}"#,
        refusal: (200, r#""code":"1001""#),
    },
    Case {
        preset: "juhe",
        identity: "c4ca4238-a0b9-3382-8dcc-509a6f75849b",
        hashed: false,
        method: "POST",
        target: "/open/GuidRequest",
        headers: JSON,
        body: r#"{"app_key":"k","app_secret":"s","path":"/msg/send_text","data":{"guid":"c4ca4238-a0b9-3382-8dcc-509a6f75849b","conversation_id":"S:1_2","content":"hi"}}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "wcferry",
        identity: "wxid_change_me",
        hashed: false,
        method: "POST",
        target: "/text",
        headers: JSON,
        body: r#"{"msg":"hi","receiver":"filehelper","aters":""}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "wxhelper",
        identity: "wxid_change_me",
        hashed: false,
        method: "POST",
        target: "/api/sendTextMsg",
        headers: JSON,
        body: r#"{"wxid":"filehelper","msg":"1112222"}"#,
        refusal: (200, r#""code":-1"#),
    },
    Case {
        preset: "wxhelper",
        identity: "wxid_change_me",
        hashed: false,
        method: "POST",
        target: "/api/?type=2",
        headers: JSON,
        body: r#"{"wxid":"filehelper","msg":"1112222"}"#,
        refusal: (200, r#""result":"ERROR""#),
    },
    Case {
        preset: "wechaty-webhook",
        identity: "YNiZn~H5xV",
        hashed: true,
        method: "POST",
        target: "/webhook/msg/v2?token=YNiZn~H5xV",
        headers: &[(
            "Content-Type",
            "multipart/form-data; boundary=------------------------d74496d66958873e",
        )],
        body: "--------------------------d74496d66958873e\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\nfriend\r\n--------------------------d74496d66958873e--\r\n",
        refusal: (200, r#""success":false"#),
    },
    Case {
        preset: "waha",
        identity: "default",
        hashed: false,
        method: "POST",
        target: "/api/sendText",
        headers: &[("X-Api-Key", "k"), ("Content-Type", "application/json")],
        body: r#"{"chatId":"12132132130@c.us","reply_to":null,"text":"Hi there!","linkPreview":true,"session":"default"}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "waha",
        identity: "second",
        hashed: false,
        method: "GET",
        target: "/api/sendText?phone=12132132130&text=hi&session=second",
        headers: &[],
        body: "",
        refusal: PROBLEM,
    },
    Case {
        preset: "waha",
        identity: "third",
        hashed: false,
        method: "PUT",
        target: "/api/third/chats/123%40c.us/messages/true_1/pin",
        headers: JSON,
        body: "{\"duration\":86400}",
        refusal: PROBLEM,
    },
    Case {
        preset: "waha",
        identity: "fourth",
        hashed: false,
        method: "GET",
        target: "/api/contacts/check-exists?phone=1213213213&session=fourth",
        headers: &[],
        body: "",
        refusal: PROBLEM,
    },
    Case {
        preset: "waha",
        identity: "fifth",
        hashed: false,
        method: "POST",
        target: "/api/send/link-custom-preview",
        headers: JSON,
        body: r#"{"session":"fifth","chatId":"1@c.us","text":"hi"}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "waha",
        identity: "sixth",
        hashed: false,
        method: "POST",
        target: "/api/sessions/sixth/restart",
        headers: &[],
        body: "",
        refusal: PROBLEM,
    },
    Case {
        preset: "evolution",
        identity: "my-instance",
        hashed: false,
        method: "POST",
        target: "/message/sendMedia/my-instance",
        headers: &[("apikey", "k"), ("Content-Type", "multipart/form-data; boundary=x")],
        body: "--x\r\nContent-Disposition: form-data; name=\"number\"\r\n\r\n55\r\n--x--\r\n",
        refusal: PROBLEM,
    },
    Case {
        preset: "gowa",
        identity: "6289685028129@s.whatsapp.net",
        hashed: false,
        method: "POST",
        target: "/send/message",
        headers: &[("X-Device-Id", "6289685028129@s.whatsapp.net"), ("Content-Type", "application/json")],
        body: r#"{"phone":"6289685024051@s.whatsapp.net","message":"hi"}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "gowa",
        identity: "dev-1",
        hashed: false,
        method: "POST",
        target: "/send/image?device_id=dev-1",
        headers: &[("Content-Type", "multipart/form-data; boundary=x")],
        body: "--x\r\nContent-Disposition: form-data; name=\"phone\"\r\n\r\n62\r\n--x--\r\n",
        refusal: PROBLEM,
    },
    Case {
        preset: "gowa",
        identity: "dev-2",
        hashed: false,
        method: "POST",
        target: "/devices/dev-2/reconnect",
        headers: &[],
        body: "",
        refusal: PROBLEM,
    },
    Case {
        preset: "wuzapi",
        identity: "1234ABCD",
        hashed: true,
        method: "POST",
        target: "/chat/send/text",
        headers: &[("Token", "1234ABCD"), ("Content-Type", "application/json")],
        body: r#"{"Phone":"5491155554444","Body":"Hello","Id":"90B2F8B13FAC8A9CF6B06E99C7834DC5"}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "signal",
        identity: "+431212131491291",
        hashed: false,
        method: "POST",
        target: "/v2/send",
        headers: JSON,
        body: r#"{"message":"Test via Signal API!","number":"+431212131491291","recipients":["+4354546464654"]}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "signal",
        identity: "+4366412345",
        hashed: false,
        method: "PUT",
        target: "/v1/typing-indicator/+4366412345",
        headers: JSON,
        body: r#"{"recipient":"+4354546464654"}"#,
        refusal: PROBLEM,
    },
    Case {
        preset: "telegram",
        identity: "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        hashed: true,
        method: "POST",
        target: "/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage",
        headers: JSON,
        body: r#"{"chat_id":42,"text":"hi"}"#,
        refusal: (428, r#""ok":false,"error_code":428"#),
    },
    Case {
        preset: "telegram",
        identity: "110201543:BBHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        hashed: true,
        method: "POST",
        target: "/bot110201543:BBHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendPhoto",
        headers: &[("Content-Type", "multipart/form-data; boundary=x")],
        body: "--x\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"a.png\"\r\n\r\n\0\r\n--x--\r\n",
        refusal: (428, r#""ok":false"#),
    },
];

fn sha256(text: &str) -> String {
    fencegate::config::hash(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `fencegate init` into a folder; the file.
fn init(folder: &Folder, preset: &str, upstream: &str) -> String {
    let file = folder.join(&format!("{preset}.toml")).display().to_string();
    let made = fencegate(&["init", "--preset", preset, "--upstream", upstream, "--output", &file]);
    assert!(made.status.success(), "{preset}: {made:?}");
    let checked = fencegate(&["check", "--config", &file]);
    assert!(checked.status.success(), "{preset}: {checked:?}");
    file
}

#[test]
fn each_preset_fences_its_senders_requests_and_leaves_them_as_they_are() {
    let folder = Folder::new("presets");
    let ensemble = Ensemble::start(1);
    let (sender, bot) = (Sender::new(), Instance::open(&ensemble.connect(), "host-a"));
    let mut held = HashSet::new();
    let mut presets: Vec<&str> = CASES.iter().map(|case| case.preset).collect();
    presets.dedup();
    assert_eq!(presets, fencegate::init::names().collect::<Vec<_>>(), "every preset is tried");
    for preset in presets {
        let text = std::fs::read_to_string(init(&folder, preset, &sender.url())).unwrap();
        let gateway = Setup::file(&ensemble.connect(), &text).start();
        for case in CASES.iter().filter(|case| case.preset == preset) {
            let what = format!("{preset} {}", case.target);
            let account = if case.hashed { sha256(case.identity) } else { case.identity.to_owned() };
            if held.insert(account.clone()) {
                bot.lead(&account);
            }
            let before = sender.count();
            let plain =
                case.headers.iter().fold(Headers::none(), |headers, (name, value)| headers.with(name, value));
            let refused = call(gateway.proxy(), case.method, case.target, &plain, case.body);
            assert_eq!(
                (refused.status, refused.header("x-fencing-verdict")),
                (case.refusal.0, Some("missing_token")),
                "{what}"
            );
            assert!(refused.text().contains(case.refusal.1), "{what}: {}", refused.text());
            let shown = refused.text().contains(case.identity);
            assert!(refused.json().is_object() && !(case.hashed && shown), "{what}");
            let token = bot.token(&account);
            let headers =
                token.iter().fold(plain.clone(), |headers, (name, value)| headers.with(name, value));
            let stale = headers.clone().without("x-fencing-session").with("X-Fencing-Session", "1");
            let refused = call(gateway.proxy(), case.method, case.target, &stale, case.body);
            assert_eq!(refused.header("x-fencing-verdict"), Some("session_mismatch"), "{what}");
            assert_eq!(sender.count(), before, "{what}: nothing was sent");
            assert_admitted(&call(gateway.proxy(), case.method, case.target, &headers, case.body));
            let request = sender.wait_until_idle().pop().unwrap();
            assert_eq!(
                (request.method.as_str(), request.target.as_str()),
                (case.method, case.target),
                "{what}"
            );
            assert_eq!(request.header("x-fencing-account"), Some(account.as_str()), "{what}");
            assert_eq!(request.text(), case.body, "{what}");
            for (name, value) in case.headers {
                assert_eq!(request.header(name), Some(*value), "{what}");
            }
        }
    }
}

/// A preset, a request that names the account A where one looks, and where its sender would find another: B, or none.
type Hostile =
    (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

const HOSTILE: [Hostile; 13] = [
    ("gewe", "POST", "/v2/api/message/postText", JSON, r#"{"appId":"A","app_id":"B","toWxid":"x"}"#),
    ("wkteam", "POST", "/sendText", JSON, r#"{"wId":"A","w_id":"B","wcId":"x"}"#),
    (
        "juhe",
        "POST",
        "/open/GuidRequest",
        JSON,
        r#"{"path":"/msg/send_text","data":{"guid":"A","$ref":"$.x"},"x":{"guid":"B"}}"#,
    ),
    ("wechatpadpro", "POST", "/message/SendTextMessage?key=A&key=B", JSON, "{}"),
    ("wechaty-webhook", "POST", "/webhook/msg/v2?Token=A", JSON, "{}"),
    ("waha", "POST", "/api/sendText?session=A", JSON, r#"{"chatId":"1@c.us","text":"hi"}"#),
    ("waha", "GET", "/api/sendText?phone=1&text=hi", JSON, r#"{"session":"A"}"#),
    ("waha", "GET", "/api/Contacts/all?session=B", &[], ""),
    ("evolution", "POST", "/message/sendText/A?instanceName=B", JSON, "{}"),
    ("evolution", "POST", "/message/sendText/A?instanceName[]=B", JSON, "{}"),
    ("gowa", "POST", "/devices/B/logout", &[("X-Device-Id", "A")], ""),
    ("gowa", "POST", "/Devices/B/logout", &[("X-Device-Id", "A")], ""),
    ("signal", "POST", "/v2/send", JSON, r#"{"number":"+1","Number":"+2","recipients":["+3"]}"#),
];

#[test]
fn what_a_presets_sender_would_find_elsewhere_is_refused() {
    let folder = Folder::new("hostile");
    let ensemble = Ensemble::start(1);
    let (sender, bot) = (Sender::new(), Instance::open(&ensemble.connect(), "host-a"));
    let mut presets: Vec<&str> = HOSTILE.iter().map(|hostile| hostile.0).collect();
    presets.dedup();
    for account in ["A", "+1", "Contacts", &sha256("A")] {
        bot.lead(account);
    }
    let token = bot.token("A");
    for preset in presets {
        let text = std::fs::read_to_string(init(&folder, preset, &sender.url())).unwrap();
        let gateway = Setup::file(&ensemble.connect(), &text).start();
        for (_, method, target, headers, body) in HOSTILE.iter().filter(|hostile| hostile.0 == preset) {
            let headers =
                headers.iter().fold(token.clone(), |headers, (name, value)| headers.with(name, value));
            let answer = call(gateway.proxy(), method, target, &headers, body);
            let verdict = answer.header("x-fencing-verdict").unwrap_or_default();
            assert!(
                ["malformed_account", "malformed_path", "no_route"].contains(&verdict),
                "{preset} {target}: {verdict}"
            );
        }
    }
    assert_eq!(sender.count(), 0);
}

#[test]
fn init_writes_a_new_file_or_none() {
    let folder = Folder::new("init");
    let run = |arguments: &[&str]| {
        Command::new(BINARY).arg("init").args(arguments).current_dir(folder.path()).output().unwrap()
    };
    let good = ["--preset", "gewe", "--upstream", "http://127.0.0.1:2531"];
    assert!(run(&good).status.success());
    let file = folder.join("gateway.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("upstream = \"http://127.0.0.1:2531\"") && text.contains("--preset gewe"));
    let again = run(&["--preset", "waha", "--upstream", "http://other"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("gateway.toml cannot be written"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "it is as it was");
    for bad in [
        ["--preset", "nobody", "--upstream", "http://a"],
        ["--preset", "gewe", "--upstream", "ftp://a"],
        ["--preset", "gewe", "--upstream", "http://a/path"],
        ["--preset", "gewe", "--upstream", "http://a\"\nmode = \"pass"],
        ["--preset", "gewe", "--upstream", ""],
    ] {
        let refused = run(&[&bad[..], &["--output", "new.toml"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{bad:?}: {refused:?}");
        assert!(!folder.join("new.toml").exists(), "{bad:?}");
    }
}

/// `fencegate explain` of a text.
fn explain(config: &Path, environment: &[(&str, &str)], text: impl AsRef<[u8]>) -> String {
    let mut command = Command::new(BINARY);
    command.arg("explain").arg("--config").arg(config).envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_ref()).unwrap();
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    assert!(status.success());
    String::from_utf8(stdout).unwrap()
}

#[test]
fn explain_says_route_account_token_and_verdict_as_the_gateway_would() {
    let ensemble = Ensemble::start(1);
    let bot = Instance::open(&ensemble.connect(), "host-a");
    let url = "http://127.0.0.1:1";
    let gateway = Setup::new(&ensemble.connect(), url)
        .route(&named_route(url, "wx", ""))
        .route(&route(url, "/json", "[\"query:a\", \"json:/appId\"]", "buffer = \"1KiB\""))
        .route(&route(url, "/bot{token}/send", "\"path:token\"", "identity = \"sha256\""))
        .route(&route(url, "/form", "\"form:a\"", "buffer = \"1KiB\""))
        .route(&named_route(url, "pass", "mode = \"pass\""))
        .start();
    bot.lead("wxid_1");
    gateway.wait_for_holder("wxid_1", bot.seq("wxid_1"));
    let token = bot.full_token("wxid_1").to_wire().replace("\r\n", "\n");
    let ask = |gateway: &Gateway, text: &str| explain(gateway.config(), &[], text);
    let good = ask(&gateway, &format!("POST /json HTTP/1.1\nHost: h\n{token}\n{{\"appId\":\"wxid_1\"}}"));
    for part in [
        "route:   number 1, path = \"/json\"",
        "account: wxid_1, from json:/appId\n",
        "token:   seq 0, session 0x",
        "verdict: admitted: ",
    ] {
        assert!(good.contains(part), "{part}: {good}");
    }
    let with = |session: &str| {
        format!("POST /wx/wxid_1/x HTTP/1.1\nHost: h\nX-Fencing-Seq: 0\nX-Fencing-Session: {session}\n\n")
    };
    let cases = [
        (with("1"), "verdict: refused, session_mismatch (409): "),
        (with("x"), "verdict: refused, malformed_token (400): "),
        (with("1").replace("wxid_1", "nobody"), "verdict: refused, unknown_account (404): "),
        (
            with("1").replace("Host: h\n", ""),
            "verdict: refused, malformed_request (400): there must be exactly one Host",
        ),
        (with("1").replace("/x ", "/../x "), "verdict: refused, malformed_path (400): "),
        (with("1").replace("/wx/", "/no/"), "verdict: refused, no_route (404): "),
        (with("1").replace("/wx/", "/pass/"), "verdict: forwarded without one: the route's mode is pass"),
        ("GET  / HTTP/1.1\n\n".to_owned(), "verdict: no request: "),
        (String::new(), "verdict: no request: "),
        (
            format!("POST /json?a=b HTTP/1.1\nHost: h\n{token}\n{{\"appId\":\"wxid_1\"}}"),
            "malformed_account (400): the request names two",
        ),
        (
            format!("POST /json HTTP/1.1\nHost: h\n{token}Content-Type: text/html\n\nx"),
            "verdict: refused, unsupported_body (415): ",
        ),
        (
            format!(
                "POST /form HTTP/1.1\nHost: h\n{token}Content-Type: application/x-www-form-urlencoded\n\na=wxid_1&b={}&a=x",
                "x".repeat(2000)
            ),
            "the send would be aborted",
        ),
    ];
    for (text, says) in cases {
        let said = ask(&gateway, &text);
        assert!(said.contains(says), "{says}: {said}\n{text}");
    }
    let secret = ask(&gateway, &format!("POST /botHUNTER2/send HTTP/1.1\nHost: h\n{token}\n"));
    assert!(secret.contains(&sha256("HUNTER2")) && !secret.contains("HUNTER2"), "{secret}");
    let hash = sha256("a key that is long enough to be one");
    let keys = [
        ("FENCEGATE__AUTH__KEYS__0__NAME", "bots"),
        ("FENCEGATE__AUTH__KEYS__0__SHA256", hash.as_str()),
        ("FENCEGATE__AUTH__KEYS__0__ACCOUNTS__0", "wxid_2"),
    ];
    let keyed = |account: &str, key: &str| {
        let text = with("1").replace("wxid_1", account).replace("Host: h\n", &format!("Host: h\n{key}"));
        explain(gateway.config(), &keys, text)
    };
    let key = "X-Fencing-Key: a key that is long enough to be one\n";
    assert!(keyed("wxid_2", "").contains("unauthenticated (401)"));
    assert!(keyed("wxid_1", key).contains("account_forbidden (403)"));
    assert!(keyed("wxid_2", key).contains("unknown_account (404)"));
    gateway.kill();
    let alone = ask(&gateway, &with("1"));
    assert!(
        alone.contains("account: wxid_1, from path:account\n")
            && alone.contains("who holds it is not known: no gateway answers on"),
        "{alone}"
    );
}
