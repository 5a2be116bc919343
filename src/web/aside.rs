//! Listeners that are served aside, each on a thread and in a runtime of its own: what is computed for them, handshakes and long
//! answers, delays nobody else.
//!
//! It knows nothing of what is served.

use std::future::Future;
use std::io;
use std::net::TcpListener as StdListener;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A listener that is served aside. Dropped, it is closed, and nobody waits for it.
#[derive(Debug)]
pub struct Aside {
    close: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

/// Ready when the listener is to be closed.
#[derive(Debug)]
pub struct Closes(oneshot::Receiver<()>);

impl Closes {
    /// Until then.
    pub async fn wait(self) {
        // Also when whoever would tell is gone.
        let _ = self.0.await;
    }
}

impl Aside {
    /// Begins. `name` is the thread's.
    ///
    /// # Errors
    /// A thread or a runtime cannot be made, or the listener cannot be used.
    pub fn start<F: Future<Output = ()>>(
        name: &str,
        listener: StdListener,
        serve: impl FnOnce(TcpListener, Closes) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (close, closes) = oneshot::channel();
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(serve(listener, Closes(closes)));
            let _ = tell.send(());
        })?;
        Ok(Self { close, ended })
    }

    /// Closes it, and waits until it has ended, at most this long.
    pub async fn close(self, patience: Duration) {
        let _ = self.close.send(());
        let _ = tokio::time::timeout(patience, self.ended).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[tokio::test]
    async fn it_runs_beside_whoever_computes_and_ends_when_it_is_told() {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let aside = Aside::start("aside", listener, |listener, closes| async move {
            drop(listener.accept().await.unwrap());
            closes.wait().await;
        });
        // This thread, and with it this runtime, does nothing but wait for the other one.
        let mut stream = TcpStream::connect(at).unwrap();
        assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0);
        let aside = aside.unwrap();
        assert!(!aside.close.is_closed(), "it goes on until it is told");
        aside.close(Duration::from_secs(60)).await;
    }
}
