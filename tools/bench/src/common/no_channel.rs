//! Replacement for a channel that responds from memory, so that only the generated client is counted.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame};
use tonic::body::Body;
use tower_service::Service;

use super::wire::MESSAGE;

#[derive(Clone)]
pub(crate) struct NoChannel;

/// Response body: a message, then the trailers.
pub(crate) enum Answer {
    Message(Body),
    Trailers,
    End,
}

impl Service<Request<Body>> for NoChannel {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut response = Response::new(Answer::Message(request.into_body()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        ready(Ok(response))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        match &mut *self {
            Answer::Message(request) => {
                // Reading the request body encodes the request, as a connection would.
                while let Poll::Ready(Some(_)) = Pin::new(&mut *request).poll_frame(cx) {}
                *self = Answer::Trailers;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(MESSAGE)))))
            }
            Answer::Trailers => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                *self = Answer::End;
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Answer::End => Poll::Ready(None),
        }
    }
}
