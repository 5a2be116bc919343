//! The routes, asked as a client would.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::clock::Clock;
use crate::key::{KeyHash, Pattern};

struct Client {
    router: Router,
    folder: std::path::PathBuf,
    key: Option<&'static str>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Client {
    fn new(name: &str, keys: Vec<Key>) -> Self {
        let folder = std::env::temp_dir().join(format!("fencegate-ballot-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let embedded = Embedded::open(&folder.join("state"), Clock::manual()).unwrap();
        Self { router: router(embedded, keys, pages::Room::Open), folder, key: None }
    }

    async fn ask(&self, method: Method, path: &str, secret: &str, body: &str) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if !secret.is_empty() {
            request = request.header("authorization", format!("Bearer {secret}"));
        }
        if let Some(key) = self.key {
            request = request.header("x-fencing-key", key);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn begin(&self, instance: &str) -> (String, String) {
        let wish = json!({ "instance_id": instance, "ttl": "15s" }).to_string();
        let (status, told) = self.ask(Method::POST, "/v1/sessions", "", &wish).await;
        assert_eq!((status, &told["ttl_ms"]), (StatusCode::CREATED, &json!(15_000)), "{told}");
        (told["session"].as_str().unwrap().to_owned(), told["secret"].as_str().unwrap().to_owned())
    }
}

#[tokio::test]
async fn a_plain_client_takes_part_from_its_session_to_its_end() {
    let client = Client::new("whole", Vec::new());
    let ((a, a_secret), (b, b_secret)) = (client.begin("host-a").await, client.begin("host-b").await);
    let candidates = "/v1/elections/wxid_1/candidates";
    let (status, first) = client.ask(Method::POST, candidates, &a_secret, "").await;
    assert_eq!((status, &first["holder"]), (StatusCode::OK, &json!(true)), "{first}");
    assert_eq!(client.ask(Method::POST, candidates, &a_secret, "").await.1, first, "the same one");
    let (_, second) = client.ask(Method::POST, candidates, &b_secret, "").await;
    assert_eq!((&second["holder"], &second["epoch"]), (&json!(false), &Value::Null));
    let (_, seen) = client.ask(Method::GET, "/v1/elections/wxid_1", "", "").await;
    let holder = json!({ "seq": first["seq"], "session": a, "instance": "host-a", "epoch": first["epoch"] });
    let all = json!([first["seq"], second["seq"]]);
    let newest = &seen["newest"];
    let whole = json!({ "account": "wxid_1", "holder": holder, "candidates": all, "newest": newest });
    assert_eq!(seen, whole);
    assert!(newest.as_i64() > first["epoch"].as_str().unwrap().parse().ok());
    // Whoever shows its secret is told which candidate is its own, as long as its session lives.
    let own = async |secret: &str| client.ask(Method::GET, "/v1/elections/wxid_1", secret, "").await.1;
    assert_eq!((&own(&a_secret).await["own"], &own(&b_secret).await["own"]), (&first["seq"], &second["seq"]));
    assert_eq!((own("0000").await.get("own"), own("").await), (None, whole.clone()));
    let both = client.ask(Method::GET, "/v1/elections?accounts=a%2Bb,wxid_1", "", "").await.1;
    let vacant = json!({ "account": "a+b", "holder": null, "candidates": [], "newest": 0 });
    assert_eq!(both, json!({ "elections": [vacant, whole] }));

    let (status, renewed) = client.ask(Method::PUT, &format!("/v1/sessions/{a}"), &a_secret, "").await;
    assert_eq!((status, &renewed["session"]), (StatusCode::OK, &json!(a)));
    assert_eq!(client.ask(Method::DELETE, candidates, &a_secret, "").await.0, StatusCode::NO_CONTENT);
    let (_, now) = client.ask(Method::POST, candidates, &b_secret, "").await;
    assert_eq!((&now["seq"], &now["holder"]), (&second["seq"], &json!(true)));
    let gone = client.ask(Method::DELETE, &format!("/v1/sessions/{b}"), &b_secret, "").await;
    assert_eq!(gone.0, StatusCode::NO_CONTENT);
    assert_eq!(client.ask(Method::POST, candidates, &b_secret, "").await.0, StatusCode::NOT_FOUND);
    let (_, seen) = client.ask(Method::GET, "/v1/elections/wxid_1", "", "").await;
    assert_eq!((&seen["holder"], &seen["candidates"]), (&Value::Null, &json!([])));
    assert_eq!(own(&a_secret).await["own"], Value::Null);
    assert_eq!(own(&b_secret).await.get("own"), None);
    assert_eq!(client.ask(Method::GET, "/v1/elections", "", "").await.1, json!({ "accounts": ["wxid_1"] }));
}

#[tokio::test]
async fn what_is_not_asked_properly_is_refused_and_says_why() {
    let client = Client::new("refused", Vec::new());
    let ((a, a_secret), (b, _)) = (client.begin("host-a").await, client.begin("host-b").await);
    for body in [
        "",
        "{}",
        r#"{"instance_id":"a","ttl":"1s"}"#,
        r#"{"instance_id":"a","ttl":"6m"}"#,
        r#"{"instance_id":"a","ttl":15}"#,
        r#"{"instance_id":"","ttl":"15s"}"#,
        r#"{"instance_id":"a","ttl":"15s","more":1}"#,
    ] {
        let (status, said) = client.ask(Method::POST, "/v1/sessions", "", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body} {said}");
        assert!(!said["detail"].as_str().unwrap().is_empty());
    }
    let long = "x".repeat(MOST_BYTES + 1);
    assert_eq!(client.ask(Method::POST, "/v1/sessions", "", &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let other = format!("/v1/sessions/{b}");
    assert_eq!(client.ask(Method::PUT, &other, &a_secret, "").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(client.ask(Method::DELETE, &other, "", "").await.0, StatusCode::UNAUTHORIZED);
    let own = format!("/v1/sessions/{a}");
    assert_eq!(client.ask(Method::GET, &own, &a_secret, "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let strange = client.ask(Method::POST, "/v1/elections/a%20b/candidates", &a_secret, "").await;
    assert_eq!(strange.0, StatusCode::BAD_REQUEST);
    assert_eq!(client.ask(Method::GET, "/elsewhere", "", "").await.0, StatusCode::NOT_FOUND);
    let many = format!("accounts={}", vec!["a"; 1001].join(","));
    for query in ["accounts=", "accounts=a,,b", "accounts=a/b", "account=a", &many] {
        let (status, said) = client.ask(Method::GET, &format!("/v1/elections?{query}"), "", "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query} {said}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_takes_no_part() {
    let client = Client::new("pages", Vec::new());
    let wish = r#"{"instance_id":"a","ttl":"15s"}"#;
    for headers in [
        [("host", "localhost"), ("origin", "http://evil.example")],
        [("host", "evil.example"), ("accept", "*/*")],
    ] {
        let request = Request::post("/v1/sessions");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = client.router.clone().oneshot(request.body(Body::from(wish)).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{headers:?}");
    }
}

#[tokio::test]
async fn where_there_are_keys_one_is_needed_and_only_for_its_accounts() {
    let accounts = vec![Pattern::parse("team-*").unwrap()];
    let keys = vec![Key { name: "team".to_owned(), hash: KeyHash::of(b"good"), accounts }];
    let mut client = Client::new("keys", keys);
    let wish = r#"{"instance_id":"a","ttl":"15s"}"#;
    for key in [None, Some("bad")] {
        client.key = key;
        assert_eq!(client.ask(Method::POST, "/v1/sessions", "", wish).await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(client.ask(Method::GET, "/v1/elections", "good", "").await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(client.ask(Method::GET, "/v1/events", "good", "").await.0, StatusCode::UNAUTHORIZED);
    }
    client.key = Some("good");
    let (_, secret) = client.begin("a").await;
    let stand = async |account: &str| {
        client.ask(Method::POST, &format!("/v1/elections/{account}/candidates"), &secret, "").await.0
    };
    assert_eq!((stand("team-1").await, stand("wxid_1").await), (StatusCode::OK, StatusCode::FORBIDDEN));
}
