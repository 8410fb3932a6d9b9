//! Concurrent calls of any client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::client::GrpcService;

use super::generated::EchoClient;
use super::raw_h2::H2;
use crate::Error;

pub(crate) const CONCURRENCY: usize = 64;

/// Makes this number of calls, [`CONCURRENCY`] at a time. The first failure ends it.
pub(crate) async fn rounds(client: &impl Client, calls: usize) -> Result<(), Error> {
    let started = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (mut client, started) = (client.clone(), started.clone());
        tasks.spawn(async move {
            while started.fetch_add(1, Ordering::Relaxed) < calls {
                client.call().await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Client that makes a call and waits for its response.
pub(crate) trait Client: Clone + Send + 'static {
    fn call(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<T> Client for EchoClient<T>
where
    T: GrpcService<Body> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Into<Error>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<Error> + Send,
{
    async fn call(&mut self) -> Result<(), Error> {
        EchoClient::call(self).await
    }
}

impl Client for H2 {
    async fn call(&mut self) -> Result<(), Error> {
        H2::call(self).await
    }
}

impl<C: Client> Client for RoundRobin<C> {
    async fn call(&mut self) -> Result<(), Error> {
        self.next()?.call().await
    }
}

/// Round robin over connections. Every task has its own senders, created once, and shares the counter.
#[derive(Clone)]
pub(crate) struct RoundRobin<C> {
    connections: Vec<C>,
    turn: Arc<AtomicUsize>,
}

impl<C> RoundRobin<C> {
    pub(crate) fn new(connections: Vec<C>) -> Self {
        Self { connections, turn: Arc::default() }
    }

    /// Returns the next connection.
    pub(crate) fn next(&mut self) -> Result<&mut C, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(self.connections.len());
        Ok(turn.and_then(|turn| self.connections.get_mut(turn)).ok_or("no backend")?)
    }
}
