//go:build unix

// Package faultyplugintest turns test binaries into plugins: good ones, and ones with faults that no author intends.
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

// variable says to a test binary that it is to be a plugin, and which.
const variable = "SLIPWAY_TEST_PLUGIN"

// Mode is a way to be a plugin.
type Mode string

// The ways.
const (
	Good       Mode = "good"        // as the test says
	Dies       Mode = "dies"        // in the middle of every call but Configure
	Hangs      Mode = "hangs"       // in the middle of every call but Configure: stopped, as by SIGSTOP
	Misroutes  Mode = "misroutes"   // every call but Configure is NOT_FOUND, without the detail
	Denies     Mode = "denies"      // every call but Configure is PERMISSION_DENIED, without the detail
	WebPage    Mode = "web page"    // answers whatever comes with a page
	Noise      Mode = "noise"       // answers whatever comes with bytes that mean nothing
	OtherAge   Mode = "other age"   // speaks version 2 of the protocol
	OtherKind  Mode = "other kind"  // speaks go-plugin's net/rpc
	Babbler    Mode = "babbler"     // prints something else where it should say where it listens
	Mute       Mode = "mute"        // says nothing and lives on
	HangsFirst Mode = "hangs first" // in Configure
	Flood      Mode = "flood"       // answers with more than anybody wants to read
	Forker     Mode = "forker"      // leaves a child that holds its output open
)

// Be makes the process a plugin if it was started by a script of Write, and does not return then. A test package calls it
// from an init function.
func Be(good func()) {
	mode := Mode(os.Getenv(variable))
	if mode == "" {
		return
	}
	switch mode {
	case Good:
		good()
	case WebPage, Noise:
		serveStrangely(mode)
	case Babbler:
		fmt.Fprintln(os.Stderr, "babbler: there is nothing to do")
		fmt.Println("Hello! Usage: babbler [flags]")
		os.Exit(3)
	case Mute:
		time.Sleep(time.Hour)
	case OtherKind:
		fmt.Println("1|1|unix|/nowhere|netrpc|")
		time.Sleep(time.Hour)
	default:
		serve(mode)
	}
	os.Exit(0)
}

// Write puts a plugin of a way into a directory, in place of what was there: a script that runs this very test binary.
func Write(directory, cloudType string, mode Mode) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s'\n", variable, mode, self)
	next := filepath.Join(directory, ".next")
	if err := os.WriteFile(next, []byte(script), 0o700); err != nil { //nolint:gosec // it is to be run
		return err
	}
	return os.Rename(next, filepath.Join(directory, cloudType))
}

// serve is a plugin that accepts its configuration and no more.
func serve(mode Mode) {
	handshake := protocol.Handshake()
	if mode == OtherAge {
		handshake.ProtocolVersion++
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         goplugin.PluginSet{protocol.Name: bad{mode: mode}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(bad{mode: mode}.intercept))...)
		},
	})
}

type bad struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedCloudProviderServer
	mode Mode
}

func (b bad) GRPCServer(_ *goplugin.GRPCBroker, to *grpc.Server) error {
	pluginv1.RegisterCloudProviderServer(to, b)
	return nil
}

func (bad) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (b bad) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, "/slipway.") {
		return handle(ctx, request)
	}
	if strings.HasSuffix(info.FullMethod, "/Configure") && b.mode != HangsFirst {
		if b.mode == Forker {
			fork()
		}
		return &pluginv1.ConfigureResponse{}, nil
	}
	switch b.mode {
	case Dies, Forker:
		kill()
	case Hangs, HangsFirst:
		stop()
	case Denies:
		return nil, status.Error(codes.PermissionDenied, "somebody in between does not like this")
	case Flood:
		return flood(info.FullMethod), nil
	}
	return nil, status.Error(codes.NotFound, "somebody in between does not know this address")
}

// flood is an answer of 17 MiB.
func flood(method string) any {
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

// serveStrangely says where it listens as a plugin does, and speaks something else there.
func serveStrangely(mode Mode) {
	directory, err := os.MkdirTemp("", "faultyplugintest")
	if err != nil {
		panic(err)
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", filepath.Join(directory, "socket"))
	if err != nil {
		panic(err)
	}
	fmt.Printf("1|%d|unix|%s|grpc|\n", protocol.Version, l.Addr())
	if mode == WebPage {
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
