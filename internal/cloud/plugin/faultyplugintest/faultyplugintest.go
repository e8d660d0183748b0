//go:build unix

// Package faultyplugintest turns test binaries into plugins, working ones and faulty ones.
package faultyplugintest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/protocol"
)

// modeVariable makes a test binary a plugin. Its value is the Mode.
const modeVariable = "SLIPWAY_TEST_PLUGIN"

// Mode is the behavior of a plugin.
type Mode string

// The modes.
const (
	Good                    Mode = "good"        // works as the test defines
	ExitsOnCall             Mode = "dies"        // exits during every call except Configure
	HangsOnCall             Mode = "hangs"       // stops, as by SIGSTOP, during every call except Configure
	ReturnsNotFound         Mode = "misroutes"   // returns NOT_FOUND without detail for every call except Configure
	ReturnsPermissionDenied Mode = "denies"      // returns PERMISSION_DENIED without detail for every call except Configure
	ServesWebPage           Mode = "web page"    // responds with a web page
	ServesNoise             Mode = "noise"       // responds with random bytes
	NewerVersion            Mode = "other age"   // speaks protocol version 2
	OtherProtocol           Mode = "other kind"  // speaks go-plugin's net/rpc
	PrintsUsage             Mode = "babbler"     // prints usage text instead of a handshake
	Silent                  Mode = "mute"        // prints nothing and keeps running
	HangsInConfigure        Mode = "hangs first" // hangs in Configure
	OversizedResponse       Mode = "flood"       // responds with too much data
	LeavesChild             Mode = "forker"      // leaves a child process that keeps its output open
)

// RunAsPluginIfRequested turns the process into a plugin if a script of Write started it, and then does not return. Test packages call it
// from init.
func RunAsPluginIfRequested(good func()) {
	mode := Mode(os.Getenv(modeVariable))
	if mode == "" {
		return
	}
	switch mode {
	case Good:
		good()
	case ServesWebPage, ServesNoise:
		serveWrongProtocol(mode)
	case PrintsUsage:
		fmt.Fprintln(os.Stderr, "babbler: there is nothing to do")
		fmt.Println("Hello! Usage: babbler [flags]")
		os.Exit(3)
	case Silent:
		time.Sleep(time.Hour)
	case OtherProtocol:
		fmt.Println("1|1|unix|/nowhere|netrpc|")
		time.Sleep(time.Hour)
	default:
		serveFaulty(mode)
	}
	os.Exit(0)
}

// WritePluginScript writes a plugin into a directory: a script that runs this test binary with a mode. It replaces an existing one.
func WritePluginScript(directory, cloudType string, mode Mode) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s'\n", modeVariable, mode, self)
	next := filepath.Join(directory, ".next")
	if err := os.WriteFile(next, []byte(script), 0o700); err != nil { //nolint:gosec // it is to be run
		return err
	}
	return os.Rename(next, filepath.Join(directory, cloudType))
}

// serveFaulty runs a plugin that only accepts its configuration.
func serveFaulty(mode Mode) {
	handshake := protocol.Handshake()
	if mode == NewerVersion {
		handshake.ProtocolVersion++
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         goplugin.PluginSet{protocol.Name: faultyServer{mode: mode}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(faultyServer{mode: mode}.intercept))...)
		},
	})
}

type faultyServer struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedCloudProviderServer
	mode Mode
}

func (b faultyServer) GRPCServer(_ *goplugin.GRPCBroker, to *grpc.Server) error {
	pluginv1.RegisterCloudProviderServer(to, b)
	return nil
}

func (faultyServer) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (b faultyServer) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, "/slipway.") {
		return handle(ctx, request)
	}
	if strings.HasSuffix(info.FullMethod, "/Configure") && b.mode != HangsInConfigure {
		if b.mode == LeavesChild {
			startOrphanedChild()
		}
		return &pluginv1.ConfigureResponse{}, nil
	}
	switch b.mode {
	case ExitsOnCall, LeavesChild:
		killSelf()
	case HangsOnCall, HangsInConfigure:
		stopSelf()
	case ReturnsPermissionDenied:
		return nil, status.Error(codes.PermissionDenied, "denied by a proxy")
	case OversizedResponse:
		return largeResponse(info.FullMethod), nil
	}
	return nil, status.Error(codes.NotFound, "address unknown to a proxy")
}

// largeResponse returns a response of 17 MiB.
func largeResponse(method string) any {
	const each, total = 1 << 10, 17 << 20
	if !strings.HasSuffix(method, "/ListInstances") {
		return &pluginv1.GetGroupResponse{Group: &pluginv1.Group{Name: strings.Repeat("x", total)}}
	}
	answer := &pluginv1.ListInstancesResponse{}
	for range total / each {
		answer.Instances = append(answer.Instances, &pluginv1.Instance{ProviderId: strings.Repeat("x", each)})
	}
	return answer
}

// serveWrongProtocol prints a valid handshake and then does not speak gRPC.
func serveWrongProtocol(mode Mode) {
	directory, err := os.MkdirTemp("", "faultyplugintest")
	if err != nil {
		panic(err)
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", filepath.Join(directory, "socket"))
	if err != nil {
		panic(err)
	}
	fmt.Printf("1|%d|unix|%s|grpc|\n", protocol.Version, l.Addr())
	if mode == ServesWebPage {
		panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // a test's
			fmt.Fprintln(w, "<html>It works!</html>")
		})))
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		_, _ = c.Write([]byte(strings.Repeat("\x00\x00\x10\x00 these bytes mean nothing", 1000)))
		_ = c.Close()
	}
}
