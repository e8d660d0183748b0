package plugin

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/protocol"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// Timeouts for a plugin that does not respond.
const (
	stopTimeout        = 2 * time.Second // between the request to stop and the kill
	healthCheckTimeout = 5 * time.Second // for a health check
)

// process is a running plugin with an accepted configuration.
type process struct {
	*program
	client   *goplugin.Client
	provider pluginv1.CloudProviderClient
	analyzer pluginv1.PodEventAnalyzerClient
	health   grpc_health_v1.HealthClient
	events   advice.Events
	started  time.Time
}

// services hands out the connection of go-plugin, which all clients share.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
}

// GRPCServer implements goplugin.GRPCPlugin. This side serves nothing.
func (services) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.ErrUnsupported
}

// GRPCClient implements goplugin.GRPCPlugin.
func (services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// startAndConfigureProcess runs a plugin until its configuration is accepted or ctx ends. If it fails, it cleans up.
func startAndConfigureProcess(ctx context.Context, path string, e Entry, lines *lineLog) (*process, error) {
	p := &process{program: newProgram(path, pluginEnvironment(e.Environment, e.memoryLimit()), e.memoryLimit(), lines)}
	p.started = time.Now()
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  protocol.Handshake(),
		Plugins:          goplugin.PluginSet{protocol.Name: services{}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     2 * timeoutOrDefault(e.StartTimeout), // ctx ends first
		Logger:           hclog.NewNullLogger(),
		SyncStdout:       lines,
		SyncStderr:       lines,
		RunnerFunc: func(_ hclog.Logger, as *exec.Cmd, _ string) (runner.Runner, error) {
			p.cmd.Env = append(p.cmd.Env, as.Env...)
			return p.program, nil
		},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(
				grpc.MaxCallRecvMsgSize(wire.MaxMessage), grpc.MaxCallSendMsgSize(wire.MaxMessage)),
			grpc.WithDisableServiceConfig(),
		},
	})
	ready := make(chan error, 1)
	go func() { ready <- p.connectAndConfigure(ctx, e) }() // go-plugin takes no context
	var err error
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = p.explainStartFailure(err)
		p.kill() //nolint:contextcheck // ctx may have ended; the plugin must be killed anyway
		return nil, err
	}
	return p, nil
}

// connectAndConfigure connects to the plugin and sends its configuration.
func (p *process) connectAndConfigure(ctx context.Context, e Entry) error {
	connection, err := p.client.Client()
	if err != nil {
		return err
	}
	service, err := connection.Dispense(protocol.Name)
	if err != nil {
		return err
	}
	conn, ok := service.(*grpc.ClientConn)
	if !ok {
		return fmt.Errorf("go-plugin returned a %T: want a connection", service)
	}
	p.provider = pluginv1.NewCloudProviderClient(conn)
	p.analyzer = pluginv1.NewPodEventAnalyzerClient(conn)
	p.health = grpc_health_v1.NewHealthClient(conn)
	answer, err := p.provider.Configure(ctx, &pluginv1.ConfigureRequest{Name: e.ProviderName(), ConfigJson: e.configJSON()})
	if status.Code(err) == codes.InvalidArgument {
		return &configError{statusError(err)}
	}
	if err != nil {
		return fmt.Errorf("configuring: %w", err)
	}
	p.events = advice.Events{Modify: answer.GetModifyEventAnalyzer(), Delete: answer.GetDeleteEventAnalyzer()}
	return nil
}

// configError means that a plugin refused its configuration.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// statusError returns the text of a gRPC status.
func statusError(err error) error { return errors.New(status.Convert(err).Message()) }

// hasExited reports whether the process has exited.
func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// awaitExitUntil waits until the process has exited or the deadline has passed.
func (p *process) awaitExitUntil(deadline time.Time) bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(time.Until(deadline)):
		return false
	}
}

// isHealthy checks the health of the plugin.
func (p *process) isHealthy() bool {
	ctx, cancel := context.WithTimeout(context.Background(), healthCheckTimeout)
	defer cancel()
	_, err := p.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	return err == nil
}

// stop asks the plugin to exit, and kills it if it does not. It takes at most twice politeness.
func (p *process) stop() {
	done := p.closeConnection()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		p.killAndWait(done)
	}
}

// kill kills the plugin. It takes at most politeness.
func (p *process) kill() {
	if err := p.Kill(context.Background()); err != nil {
		p.lines.log.Error("killing the plugin failed", "err", err)
	}
	p.killAndWait(p.closeConnection())
}

// closeConnection makes go-plugin close the connection. This can take as long as the plugin lives.
func (p *process) closeConnection() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.client.Kill()
	}()
	return done
}

func (p *process) killAndWait(done <-chan struct{}) {
	if err := p.Kill(context.Background()); err != nil {
		p.lines.log.Error("killing the plugin failed", "err", err)
	}
	select {
	case <-done:
	case <-time.After(stopTimeout):
		p.lines.log.Warn("the plugin was killed, but its connection is not closed yet", "pid", p.ID())
	}
}
