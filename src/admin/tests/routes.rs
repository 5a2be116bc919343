//! Health, readiness, the view, history, and what is not there.

use serde_json::json;

use super::*;

#[tokio::test]
async fn the_process_is_healthy_whatever_the_elections_do() {
    let world = World::closed(Memory::default(), true, 10);
    world.status.stop();
    assert_eq!(world.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_gateway_is_ready_once_everything_is_read_and_until_it_stops() {
    let memory = Memory::default();
    memory.stand(&account("wxid_1"), SessionId(1), "host");
    let world = World::closed(memory, true, 10);
    let early = world.get("/readyz").await;
    assert_eq!(early.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(early.json(), json!({ "ready": false, "reasons": ["not connected yet"] }));
    let reading = json!({ "ready": false, "reasons": ["the accounts are being read"] });
    world.until("reading", async || world.get("/readyz").await.json() == reading).await;

    world.lens.send_replace(true);
    world.until("ready", async || world.get("/readyz").await.status == StatusCode::OK).await;
    assert_eq!(world.get("/readyz").await.json(), json!({ "ready": true }));

    world.status.stop();
    let stopping = world.get("/readyz").await;
    assert_eq!(stopping.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(stopping.json()["reasons"], json!(["shutting down"]));
}

#[tokio::test]
async fn the_view_has_no_session_and_no_proof_before_the_first_link() {
    let world = World::closed(Memory::default(), true, 10);
    let view = world.get("/v1/view").await.json();
    assert_eq!(
        view,
        json!({
            "backend": "embedded", "connected": false, "session": null, "accounts": 0, "loading": true,
            "proof": null,
        })
    );
}

#[tokio::test]
async fn the_view_tells_session_accounts_and_proof() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host").await;
    let view = world.get("/v1/view").await.json();
    let age = view["proof"]["age_ms"].as_u64().unwrap();
    let last = view["proof"]["last_ms"].as_f64().unwrap();
    assert_eq!(
        view,
        json!({
            "backend": "embedded", "connected": true, "session": "0xfffffffffffffffe", "accounts": 1,
            "loading": false, "proof": { "age_ms": age, "last_ms": last, "barrier": "quorum" },
        })
    );
}

#[tokio::test]
async fn a_history_is_accepted_once_and_only_if_it_went_back() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host").await;
    world.stand("wxid_2", 2, "host").await;
    world.tint("wxid_2", View::Absent).await;
    assert!(world.post("/v1/history/accept", &[]).await.problem(409).contains("nothing to accept"));

    world.registry.refuse_history();
    let refused = world.get("/readyz").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.json()["reasons"][0].as_str().unwrap().starts_with("history reset"));

    let accepted = world.post("/v1/history/accept", &[]).await;
    assert_eq!((accepted.status, accepted.json()), (StatusCode::OK, json!({ "accepted": true })));
    world.post("/v1/history/accept", &[]).await.problem(409);
    // Read again, each account is counted as it is now.
    world.until_account("wxid_1", "read again", |it| it["state"] == "held").await;
    world.until("ready", async || world.get("/v1/view").await.json()["loading"] == false).await;
    assert_eq!(world.get("/v1/view").await.json()["accounts"], 1);
}

#[tokio::test]
async fn a_page_of_another_site_accepts_no_history() {
    let world = World::new().await;
    world.registry.refuse_history();
    for origin in ["https://example.com", "http://127.0.0.1:90", "null"] {
        let headers = [("host", "127.0.0.1:9090"), ("origin", origin)];
        world.post("/v1/history/accept", &headers).await.problem(403);
    }
    assert!(world.registry.is_history_reset());
    let headers = [("host", "127.0.0.1:9090"), ("origin", "http://127.0.0.1:9090")];
    assert_eq!(world.post("/v1/history/accept", &headers).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_name_never_seen_is_not_found() {
    let world = World::new().await;
    assert!(world.get("/v1/accounts/wxid_404").await.problem(404).contains("wxid_404"));
    assert!(world.get("/v1/accounts/a%2Fb").await.problem(404).contains("no account can have this name"));
    world.get("/v1/accounts/%FF").await.problem(400);
}

#[tokio::test]
async fn other_paths_are_not_found_and_other_methods_not_allowed() {
    let world = World::new().await;
    for path in ["/v1", "/v1/accounts/", "/v1/accounts/a/b", "/wx/wxid_1/send", "/metrics/"] {
        world.get(path).await.problem(404);
    }
    for path in
        ["/healthz", "/readyz", "/metrics", "/v1/view", "/v1/accounts", "/v1/accounts/a", "/v1/events"]
    {
        let answer = world.post(path, &[]).await;
        answer.problem(405);
        assert_eq!(answer.headers["allow"], "GET,HEAD", "{path}");
    }
    let answer = world.get("/v1/history/accept").await;
    answer.problem(405);
    assert_eq!(answer.headers["allow"], "POST");
}
