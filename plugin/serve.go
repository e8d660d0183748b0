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

// Serve serves the plugin until Slipway no longer needs it. Call it last in main. If Slipway did not start the program,
// it prints an explanation and exits.
//
// Standard error, including the output of log and log/slog, goes to Slipway's log. Do not write to standard output
// before Serve: the protocol uses it.
func Serve(open OpenFunc) {
	handshake := protocol.Handshake()
	if os.Getenv(handshake.MagicCookieKey) != handshake.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is a plugin of Slipway. Install it in the plugin directory; Slipway starts it.\n"+
			"To test it: slipway plugin test %s\n", os.Args[0], os.Args[0])
		os.Exit(1)
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	go exitWithSlipway()
	s := &server{open: open}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         goplugin.PluginSet{protocol.Name: pluginServices{server: s}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options,
				grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage),
				grpc.UnaryInterceptor(s.checkConfiguredAndRecover))...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Error}),
	})
	s.closeProvider()
}

// exitWithSlipway exits when Slipway has exited for any reason, because Slipway holds the other end of standard input.
func exitWithSlipway() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// checkConfiguredAndRecover refuses calls before Configure, converts errors of the provider to a gRPC status, and recovers from panics,
// so that other calls continue.
func (s *server) checkConfiguredAndRecover(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("the plugin panicked", "method", info.FullMethod, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s: the plugin panicked: %v", info.FullMethod, p)
		}
		err = wire.ToStatus(err)
	}()
	if info.Server == any(s) && info.FullMethod != pluginv1.CloudProvider_Configure_FullMethodName { // other services belong to go-plugin
		if err := s.checkConfigured(); err != nil {
			return nil, err
		}
	}
	return handle(ctx, request)
}

type pluginServices struct {
	goplugin.NetRPCUnsupportedPlugin
	server *server
}

// GRPCServer implements goplugin.GRPCPlugin.
func (s pluginServices) GRPCServer(_ *goplugin.GRPCBroker, to *grpc.Server) error {
	pluginv1.RegisterCloudProviderServer(to, s.server)
	pluginv1.RegisterPodEventAnalyzerServer(to, s.server)
	return nil
}

// GRPCClient implements goplugin.GRPCPlugin for the other side.
func (pluginServices) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
