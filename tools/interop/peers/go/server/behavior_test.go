package main

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestHowACallEnds(t *testing.T) {
	cases := []struct {
		metadata []string
		want     codes.Code
	}{
		{nil, codes.OK},
		{[]string{"rpc-behavior", "error-code-14"}, codes.Unavailable},
		{[]string{"rpc-behavior", "sleep-0, error-code-2"}, codes.Unknown},
		{[]string{"rpc-behavior", "sleep-0", "rpc-behavior", "error-code-2"}, codes.Unknown},
		{[]string{"rpc-behavior", "hostname=here error-code-2"}, codes.Unknown},
		{[]string{"rpc-behavior", "hostname=there error-code-2"}, codes.OK},
		{[]string{"rpc-behavior", "hostname=there error-code-2,error-code-5"}, codes.NotFound},
		{[]string{"rpc-behavior", "succeed-on-retry-attempt-2,error-code-2"}, codes.Unknown},
		{[]string{"rpc-behavior", "succeed-on-retry-attempt-2,error-code-2", "grpc-previous-rpc-attempts", "2"}, codes.OK},
		{[]string{"rpc-behavior", "keep-open"}, codes.Canceled},
		{[]string{"rpc-behavior", "sleep-9"}, codes.Canceled},
		{[]string{"rpc-behavior", "sleep-soon"}, codes.InvalidArgument},
		{[]string{"rpc-behavior", "hostname=here"}, codes.InvalidArgument},
		{[]string{"rpc-behavior", "dance"}, codes.InvalidArgument},
	}
	for _, c := range cases {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(c.metadata...))
		ctx, cancel := context.WithCancel(ctx)
		if c.want == codes.Canceled {
			cancel()
		}
		if got := status.Code(behave(ctx, "here")); got != c.want {
			t.Errorf("%v: expected %v, found %v", c.metadata, c.want, got)
		}
		cancel()
	}
}
