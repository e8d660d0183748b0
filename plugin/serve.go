package plugin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/protocol"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// Serve serves the plugin until Slipway does not need it any more. It is the last thing that main does: a program that
// Slipway has not started says so and exits.
//
// What the program writes to standard error, with log or log/slog too, is put into Slipway's log. Standard output belongs
// to the protocol until Serve has begun.
func Serve(open OpenFunc) {
	handshake := protocol.Handshake()
	if os.Getenv(handshake.MagicCookieKey) != handshake.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is a plugin of Slipway, which starts it: put it into the plugin directory.\n"+
			"To try it: slipway plugin test %s\n", os.Args[0], os.Args[0])
		os.Exit(1)
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	go leaveWithSlipway()
	s := &server{open: open}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         goplugin.PluginSet{protocol.Name: services{server: s}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options,
				grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage),
				grpc.UnaryInterceptor(s.intercept))...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Error}),
	})
	s.close()
}

// leaveWithSlipway ends the program when Slipway is gone, however it went: it holds the other end of standard input.
func leaveWithSlipway() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// intercept refuses calls that come before Configure. It puts into a status what an error of the provider means, and keeps a panic
// from ending the other calls.
func (s *server) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("the plugin panicked", "method", info.FullMethod, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s: the plugin panicked: %v", info.FullMethod, p)
		}
		err = wire.StatusOf(err)
	}()
	if info.Server == any(s) && info.FullMethod != pluginv1.CloudProvider_Configure_FullMethodName { // else it is one of go-plugin's own
		if err := s.checkConfigured(); err != nil {
			return nil, err
		}
	}
	return handle(ctx, request)
}

// services registers the server with go-plugin.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
	server *server
}

// GRPCServer implements goplugin.GRPCPlugin.
func (s services) GRPCServer(_ *goplugin.GRPCBroker, to *grpc.Server) error {
	pluginv1.RegisterCloudProviderServer(to, s.server)
	pluginv1.RegisterPodEventAnalyzerServer(to, s.server)
	return nil
}

// GRPCClient implements goplugin.GRPCPlugin for the other side.
func (services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
