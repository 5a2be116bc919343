//! The listener, over real sockets.

use std::net::SocketAddr;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;
use crate::web::server::serve_at_most;

struct Running {
    at: SocketAddr,
    telemetry: Arc<Telemetry>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

async fn start(most: usize, router: Router) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, telemetry) = (listener.local_addr().unwrap(), Arc::new(Telemetry::new()));
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let serving = tokio::spawn(serve_at_most(most, listener, None, router, Arc::clone(&telemetry), shutdown));
    Running { at, telemetry, stop, serving }
}

impl Running {
    async fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: admin\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    fn connections(&self) -> String {
        let text = self.telemetry.render();
        let line = text.lines().find(|line| line.starts_with("fencegate_connections{listener=\"admin\"}"));
        line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
    }
}

/// Reads until `part` has come.
async fn until(stream: &mut TcpStream, part: &str) -> String {
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen);
        if text.contains(part) {
            return text.into_owned();
        }
        let read = stream.read_buf(&mut seen).await.unwrap();
        assert!(read > 0, "ended before {part:?}: {}", String::from_utf8_lossy(&seen));
    }
}

#[tokio::test]
async fn a_handover_is_told_over_a_socket_and_the_stream_ends_with_the_listener() {
    let world = World::new().await;
    let running = start(10, world.router.clone()).await;
    let mut stream = running.ask("/v1/events").await;
    until(&mut stream, "event: view").await;
    assert_eq!(running.connections(), "1");
    world.stand("wxid_1", 1, "host-a").await;
    world.stand("wxid_1", 2, "host-b").await;
    world.memory.end(SessionId(1));
    let told = until(&mut stream, "event: handover\ndata: {\"account\":\"wxid_1\",").await;
    assert!(!told.contains("lagged"));

    running.stop.send(()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "ended cleanly: {}", String::from_utf8_lossy(&rest));
    running.serving.await.unwrap();
    assert!(TcpStream::connect(running.at).await.is_err());
}

#[tokio::test]
async fn a_request_that_does_not_end_holds_up_the_shutdown_for_a_second_only() {
    let never = Router::new().route("/", get(std::future::pending::<()>));
    let running = start(10, never).await;
    let mut stream = running.ask("/").await;
    World::new().await.until("open", async || running.connections() == "1").await;
    running.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), running.serving).await.unwrap().unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let text = running.telemetry.render();
    assert!(text.contains("fencegate_connections{listener=\"admin\"} 0"), "{text}");
}

#[tokio::test]
async fn open_requests_end_after_the_shutdown_began() {
    let (answer, wait) = watch::channel(false);
    let slow = move || {
        let mut wait = wait.clone();
        async move { wait.wait_for(|go| *go).await.map_or("gone", |_| "answered") }
    };
    let running = start(10, Router::new().route("/", get(slow))).await;
    let mut stream = running.ask("/").await;
    let world = World::new().await;
    world.until("asked", async || answer.receiver_count() > 1).await;
    running.stop.send(()).unwrap();
    world.until("closed", async || TcpStream::connect(running.at).await.is_err()).await;
    answer.send_replace(true);
    until(&mut stream, "answered").await;
    running.serving.await.unwrap();
}

#[tokio::test]
async fn beyond_the_bound_a_connection_waits_until_another_ends() {
    let world = World::new().await;
    let running = start(2, world.router.clone()).await;
    let (mut one, two) = (running.ask("/healthz").await, running.ask("/healthz").await);
    until(&mut one, "ok").await;
    world.until("two are open", async || running.connections() == "2").await;
    let mut three = running.ask("/healthz").await;
    // The listener has had its turns meanwhile.
    for _ in 0..10 {
        one.write_all(b"GET /readyz HTTP/1.1\r\nhost: admin\r\n\r\n").await.unwrap();
        until(&mut one, "ready").await;
    }
    assert_eq!(running.connections(), "2");
    drop(two);
    until(&mut three, "ok").await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_ends_its_connection() {
    let running = start(10, Router::new()).await;
    let mut stream = TcpStream::connect(running.at).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    let mut rest = Vec::new();
    // Reset or ended: either way it is over.
    let _ = stream.read_to_end(&mut rest).await;
    let (world, connections) = (World::new().await, || running.connections());
    world.until("closed", async || connections() == "0").await;
}
