// What a call may ask the server to do, by request metadata: `rpc-behavior: sleep-2,hostname=a error-code-14`.

package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// behave does what the call asks for, one behaviour after the other, and returns the status that the call is to
// end with, or nil if it goes on as usual.
func behave(ctx context.Context, hostname string) error {
	request, _ := metadata.FromIncomingContext(ctx)
	for _, behavior := range behaviors(request) {
		// `hostname=NAME ` in front: for that host only.
		if named, ok := strings.CutPrefix(behavior, "hostname="); ok {
			name, rest, ok := strings.Cut(named, " ")
			if !ok || name == "" {
				return refuse("hostname=NAME BEHAVIOR", behavior)
			}
			if name != hostname {
				continue
			}
			behavior = strings.TrimSpace(rest)
		}
		if goesOn, err := behaveOnce(ctx, request, behavior); err != nil || !goesOn {
			return err
		}
	}
	return nil
}

// behaveOnce does one behaviour. The behaviours after it are looked at only if it returns true.
func behaveOnce(ctx context.Context, request metadata.MD, behavior string) (bool, error) {
	if behavior == "keep-open" {
		<-ctx.Done()
		return false, status.FromContextError(ctx.Err()).Err()
	}
	if seconds, ok := strings.CutPrefix(behavior, "sleep-"); ok {
		n, err := strconv.ParseUint(seconds, 10, 16)
		if err != nil {
			return false, refuse("sleep-SECONDS", behavior)
		}
		return true, pause(ctx, time.Duration(n)*time.Second)
	}
	if code, ok := strings.CutPrefix(behavior, "error-code-"); ok {
		n, err := strconv.ParseUint(code, 10, 16)
		if err != nil {
			return false, refuse("error-code-CODE", behavior)
		}
		return false, status.Errorf(codes.Code(n), "as the call asked for: %s", behavior)
	}
	if attempt, ok := strings.CutPrefix(behavior, "succeed-on-retry-attempt-"); ok {
		n, err := strconv.ParseUint(attempt, 10, 16)
		if err != nil {
			return false, refuse("succeed-on-retry-attempt-N", behavior)
		}
		return previousAttempts(request) != n, nil
	}
	return false, refuse("sleep-N, keep-open, error-code-N or succeed-on-retry-attempt-N", behavior)
}

// behaviors are the comma separated behaviours of all values of the key.
func behaviors(request metadata.MD) []string {
	var all []string
	for _, value := range request.Get("rpc-behavior") {
		for _, behavior := range strings.Split(value, ",") {
			if behavior = strings.TrimSpace(behavior); behavior != "" {
				all = append(all, behavior)
			}
		}
	}
	return all
}

// previousAttempts is 0 for the first attempt, which does not have the key.
func previousAttempts(request metadata.MD) uint64 {
	for _, value := range request.Get("grpc-previous-rpc-attempts") {
		if n, err := strconv.ParseUint(value, 10, 16); err == nil {
			return n
		}
	}
	return 0
}

func refuse(expected, found string) error {
	return status.Errorf(codes.InvalidArgument, "rpc-behavior: expected %s, found %q", expected, found)
}

// pause waits, unless the call ends first.
func pause(ctx context.Context, length time.Duration) error {
	if length <= 0 {
		return nil
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
