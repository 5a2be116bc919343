//! Who may look, and who may change something.

use super::*;
use crate::key::{Key, KeyHash};

const PATHS: [&str; 8] = [
    "/",
    "/metrics",
    "/v1/view",
    "/v1/accounts",
    "/v1/accounts/a",
    "/v1/events",
    "/v1/history/accept",
    "/nothing",
];

fn world(keys: &[&str], exposed: bool) -> World {
    World::changed(Memory::default(), true, 10, |admin| {
        let key = |key: &&str| Key {
            name: (*key).to_owned(),
            hash: KeyHash::of(key.as_bytes()),
            accounts: Vec::new(),
        };
        admin.keys = keys.iter().map(key).collect();
        admin.exposed = exposed;
    })
}

async fn ask(world: &World, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request =
        headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    world.ask(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn where_there_are_keys_whoever_has_none_sees_health_and_readiness_only() {
    let world = world(&["one", "two"], false);
    for path in PATHS {
        for headers in [
            &[][..],
            &[("x-fencing-key", "three")],
            &[("x-fencing-key", "")],
            &[("authorization", "Bearer three")],
            &[("authorization", "Basic dXNlcjp0aHJlZQ==")],
        ] {
            let answer = ask(&world, path, headers).await;
            assert!(answer.problem(401).contains("admin_keys"), "{path} {headers:?}");
            assert_eq!(answer.headers["www-authenticate"], "Basic realm=\"fencegate\"");
        }
        assert_eq!(world.post(path, &[]).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(world.get("/healthz").await.status, StatusCode::OK);
    assert_eq!(world.get("/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn whoever_has_a_key_sees_everything() {
    let world = world(&["one", "two"], true);
    for headers in [
        ("x-fencing-key", "one"),
        ("x-fencing-key", "two"),
        ("authorization", "Bearer two"),
        ("authorization", "Basic dXNlcjp0d28="),
    ] {
        assert_eq!(ask(&world, "/v1/view", &[headers]).await.status, StatusCode::OK, "{headers:?}");
        assert_eq!(ask(&world, "/nothing", &[headers]).await.status, StatusCode::NOT_FOUND);
        let nothing_to_accept = world.post("/v1/history/accept", &[headers]).await;
        assert_eq!(nothing_to_accept.status, StatusCode::CONFLICT);
    }
}

#[tokio::test]
async fn a_page_of_another_site_changes_and_sees_nothing_whatever_its_browser_knows() {
    let (bare, guarded) = (world(&[], false), world(&["one"], false));
    let own = [("host", "localhost:9090"), ("origin", "http://localhost:9090")];
    let other = [("host", "localhost:9090"), ("origin", "http://evil.example")];
    let renamed = [("host", "evil.example:9090"), ("origin", "http://evil.example:9090")];
    let accept = "/v1/history/accept";
    assert_eq!(bare.post(accept, &own).await.status, StatusCode::CONFLICT, "nothing to accept");
    for headers in [other, renamed] {
        assert!(bare.post(accept, &headers).await.problem(403).contains("ask") || headers == renamed);
        assert_eq!(bare.post(accept, &headers).await.status, StatusCode::FORBIDDEN, "{headers:?}");
        assert_eq!(ask(&bare, "/v1/accounts", &headers).await.status, StatusCode::FORBIDDEN, "{headers:?}");
    }
    let key = ("authorization", "Basic dXNlcjpvbmU=");
    assert_eq!(guarded.post(accept, &[other[0], other[1], key]).await.status, StatusCode::FORBIDDEN);
    let behind = [("host", "gateway.example"), ("origin", "https://gateway.example"), key];
    assert_eq!(
        guarded.post(accept, &behind).await.status,
        StatusCode::CONFLICT,
        "a name of its own, with a key"
    );
}

#[tokio::test]
async fn what_changes_something_needs_a_key_unless_only_this_machine_can_ask() {
    let exposed = world(&[], true);
    assert!(exposed.post("/v1/history/accept", &[]).await.problem(403).contains("admin_keys"));
    assert_eq!(exposed.get("/v1/view").await.status, StatusCode::OK);
    assert_eq!(world(&[], false).post("/v1/history/accept", &[]).await.status, StatusCode::CONFLICT);
}
