//! The event stream, as its reader sees it.

use axum::body::BodyDataStream;
use futures_util::StreamExt;
use serde_json::json;

use super::*;
use crate::code::Code;
use crate::gateway::events::Event;

struct Reader(BodyDataStream);

impl Reader {
    async fn open(world: &World) -> Self {
        let request = Request::get("/v1/events").body(Body::empty()).unwrap();
        let answer = world.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self(answer.into_body().into_data_stream())
    }

    async fn frame(&mut self) -> Option<String> {
        Some(String::from_utf8(self.0.next().await?.unwrap().to_vec()).unwrap())
    }

    /// The next event: its name and its data.
    async fn next(&mut self) -> (String, Value) {
        let frame = self.frame().await.expect("the stream goes on");
        let (name, data) = frame.trim_end().split_once('\n').expect("an event has two lines");
        let data = data.strip_prefix("data: ").unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), serde_json::from_str(data).unwrap())
    }

    async fn next_named(&mut self, name: &str) -> Value {
        loop {
            let (found, data) = self.next().await;
            if found == name {
                return data;
            }
        }
    }
}

fn refusal(number: u64) -> Event {
    Event::Refusal { account: None, code: Code::NoRoute, request_id: number.to_string() }
}

#[tokio::test]
async fn a_stream_begins_with_the_view_and_tells_accounts_and_handovers() {
    let world = World::new().await;
    let mut reader = Reader::open(&world).await;
    let (first, view) = reader.next().await;
    assert_eq!((first.as_str(), &view["connected"]), ("view", &json!(true)));

    let old = world.stand("wxid_1", 1, "host-a").await;
    assert_eq!(reader.next_named("account").await, world.get("/v1/accounts/wxid_1").await.json());
    let new = world.stand("wxid_1", 2, "host-b").await;
    world.memory.end(SessionId(1));
    let handover = reader.next_named("handover").await;
    assert_eq!(
        handover,
        json!({
            "account": "wxid_1",
            "at": handover["at"].as_u64().unwrap(),
            "reason": "session_expired",
            "from": { "seq": old, "instance_id": "host-a" },
            "to": { "seq": new, "instance_id": "host-b" },
        })
    );
}

#[tokio::test]
async fn a_refusal_tells_account_code_and_request_and_text_from_outside_stays_on_its_line() {
    let world = World::new().await;
    let mut reader = Reader::open(&world).await;
    world.registry.tell(|| Event::Refusal {
        account: Some(account("wxid_1")),
        code: Code::StaleToken,
        request_id: "a\nevent: view\r\n\n".to_owned(),
    });
    world.registry.tell(|| refusal(1));
    let told = json!({ "account": "wxid_1", "code": "stale_token", "request_id": "a\nevent: view\r\n\n" });
    assert_eq!(reader.next_named("refusal").await, told);
    let told = json!({ "account": null, "code": "no_route", "request_id": "1" });
    assert_eq!(reader.next_named("refusal").await, told);
}

#[tokio::test]
async fn an_account_that_was_forgotten_is_told_as_vacant() {
    let world = World::new().await;
    let mut reader = Reader::open(&world).await;
    world.registry.tell(|| Event::Account(account("wxid_9")));
    let told = reader.next_named("account").await;
    assert_eq!((&told["account"], &told["state"]), (&json!("wxid_9"), &json!("vacant")));
}

#[tokio::test]
async fn a_slow_reader_is_told_how_much_it_missed_and_reads_on() {
    let world = World::new().await;
    let mut reader = Reader::open(&world).await;
    for number in 0..1500 {
        world.registry.tell(|| refusal(number));
    }
    let missed = reader.next_named("lagged").await["missed"].as_u64().unwrap();
    assert!((1..1500).contains(&missed));
    for number in missed..1500 {
        assert_eq!(
            reader.next().await,
            (
                "refusal".to_owned(),
                json!({
                    "account": null, "code": "no_route", "request_id": number.to_string(),
                })
            )
        );
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the time that a test makes pass")]
async fn a_silent_stream_is_kept_alive_with_comments() {
    let world = World::new().await;
    let mut reader = Reader::open(&world).await;
    reader.next_named("view").await;
    // Time passes by itself whenever nothing else happens.
    let before = tokio::time::Instant::now();
    assert_eq!(reader.frame().await.as_deref(), Some(":\n\n"));
    assert_eq!(before.elapsed().as_secs(), 15);
}

#[tokio::test]
async fn there_is_an_end_to_the_number_of_streams() {
    let world = World::new().await;
    let mut readers = Vec::new();
    for _ in 0..crate::admin::MOST_STREAMS {
        readers.push(Reader::open(&world).await);
    }
    world.get("/v1/events").await.problem(503);
    readers.pop();
    readers.push(Reader::open(&world).await);
}
