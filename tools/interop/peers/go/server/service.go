// The calls of grpc.testing.TestService that the xDS and load report cases make: EmptyCall, UnaryCall and
// FullDuplexCall. The others are unimplemented.

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxPayload bounds what a request can make the server allocate.
const maxPayload = 4 << 20

type testService struct {
	testpb.UnimplementedTestServiceServer
	hostname string
	serverID string
	load     load
	reports  *reports
}

func (s *testService) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return &testpb.Empty{}, nil
}

func (s *testService) UnaryCall(ctx context.Context, request *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	reportCall(ctx, request.GetOrcaPerQueryReport())
	if err := echo(request.GetResponseStatus()); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	payload, err := payloadOf(request.GetResponseSize())
	if err != nil {
		return nil, err
	}
	return &testpb.SimpleResponse{Payload: payload, ServerId: s.serverID, Hostname: s.hostname}, nil
}

// begin reports the load of the command line, does what the call asks for, and names this host in the response
// header of a call that is not to fail.
func (s *testService) begin(ctx context.Context) error {
	s.load.report(ctx)
	if err := behave(ctx, s.hostname); err != nil {
		return err
	}
	return grpc.SetHeader(ctx, metadata.Pairs("hostname", s.hostname))
}

// FullDuplexCall answers each request as it comes, and reports out of band what a request says.
func (s *testService) FullDuplexCall(stream testpb.TestService_FullDuplexCallServer) error {
	if err := stream.SetHeader(metadata.Pairs("hostname", s.hostname)); err != nil {
		return err
	}
	leave := func() {}
	defer func() { leave() }()
	for entered := false; ; {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := echo(request.GetResponseStatus()); err != nil {
			return err
		}
		if report := request.GetOrcaOobReport(); report != nil {
			if !entered {
				if leave, err = s.reports.enter(stream.Context()); err != nil {
					return err
				}
				entered = true
			}
			s.reports.set(report)
		}
		if err := respond(stream, request.GetResponseParameters()); err != nil {
			return err
		}
	}
}

func respond(stream testpb.TestService_FullDuplexCallServer, parameters []*testpb.ResponseParameters) error {
	for _, parameter := range parameters {
		if err := pause(stream.Context(), time.Duration(parameter.GetIntervalUs())*time.Microsecond); err != nil {
			return err
		}
		payload, err := payloadOf(parameter.GetSize())
		if err != nil {
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload}); err != nil {
			return err
		}
	}
	return nil
}

// echo is the status that the request wants back, if it wants one.
func echo(wanted *testpb.EchoStatus) error {
	if wanted.GetCode() == 0 {
		return nil
	}
	return status.Error(codes.Code(wanted.GetCode()), wanted.GetMessage())
}

func payloadOf(size int32) (*testpb.Payload, error) {
	if size < 0 || size > maxPayload {
		return nil, status.Errorf(codes.InvalidArgument, "size of the response: expected 0 to %d, found %d", maxPayload, size)
	}
	if size == 0 {
		return nil, nil
	}
	return &testpb.Payload{Body: make([]byte, size)}, nil
}
