// Package openstack starts a real OpenStack on the loopback interface for tests. It runs Keystone, Glance, Placement,
// Neutron and Nova from Debian 12's packages (OpenStack Zed), with MariaDB and RabbitMQ. Two parts are fake: the
// hypervisor is Nova's own fake driver, and ml2/nullbind.py replaces the network below Neutron. There is no Cinder, no
// metadata service and no TLS.
//
// A server needs 1.3 to 2.4 s to become ACTIVE and about 1.5 s to be deleted. Nova's quota is inexact under concurrent
// creates. The fake driver forgets its servers when nova-compute restarts.
package openstack

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// scripts are install, up and down, which can also be run from a shell.
//
//go:embed install up down seed.py ml2
var scripts embed.FS

// DirVariable is the name of the environment variable that holds the directory of the OpenStack for tests.
const DirVariable = "SLIPWAY_OPENSTACK"

// DeadlineVariable is the name of the environment variable that holds a time in seconds since 1970. Tests that begin
// later are skipped.
const DeadlineVariable = "SLIPWAY_OPENSTACK_UNTIL"

// The names of the entries in clouds.yaml.
const (
	DemoCloud  = "demo"  // the project of the tests, without quota, with a network, a security group and a key pair
	OtherCloud = "other" // another, empty project with Nova's default quota
	AdminCloud = "admin"
)

// Cloud is an OpenStack that is running on this machine.
type Cloud struct {
	// Dir holds its state, logs and process IDs.
	Dir string
	IDs IDs
}

// IDs holds the IDs of the resources that Start creates. All of them belong to the project Demo, except the flavors.
type IDs struct {
	Image         string            `json:"image"`          // named tiny, public
	Network       string            `json:"network"`        // named demo-net
	SecurityGroup string            `json:"security_group"` // named demo-sg
	Project       string            `json:"project"`
	User          string            `json:"user"`
	Flavors       map[string]string `json:"flavors"`   // m.2c4g, m.4c8g, t.1c512m, and giant, which fits on no host
	Endpoints     map[string]string `json:"endpoints"` // by service type
}

// KeyPair is the name of the SSH key pair in the project Demo.
const KeyPair = "demo-key"

// FirstZone and SecondZone are the availability zones of the two hosts of the OpenStack for tests. An OpenStack with
// one host has only Nova's default zone.
const (
	FirstZone  = "west"
	SecondZone = "east"
)

// DefaultDir returns the default directory of OpenStack, next to the binaries of dev/controlplane.
func DefaultDir() (string, error) {
	if dir := os.Getenv(controlplane.CacheDirVariable); dir != "" {
		return filepath.Join(dir, "openstack"), nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a directory for OpenStack (set %s to one): %w", controlplane.CacheDirVariable, err)
	}
	return filepath.Join(user, "slipway-dev", "openstack"), nil
}

// Install installs the packages that OpenStack needs and that are missing. It must run as root.
func Install(ctx context.Context, dir string, out io.Writer) error {
	return runScript(ctx, dir, out, "install")
}

// Start starts a new or existing OpenStack in a directory, and returns when all services work. The first start takes
// about 40 s. The processes of OpenStack continue after this process has ended. Stop ends them.
func Start(ctx context.Context, dir string, out io.Writer) (*Cloud, error) {
	if err := runScript(ctx, dir, out, "up", filepath.Join(dir, "run")); err != nil {
		return nil, err
	}
	return OpenStarted(filepath.Join(dir, "run"))
}

// Stop ends the processes that Start has started in a directory. It finds them by their recorded process IDs.
func Stop(ctx context.Context, dir string, out io.Writer) error {
	return runScript(ctx, dir, out, "down", filepath.Join(dir, "run"))
}

// InstallAndStart installs OpenStack if needed, and starts it in a directory that has the given name. An interrupted
// run may have left servers in the database. So InstallAndStart deletes the servers of the project Demo that have
// the given metadata. The function stop ends OpenStack.
func InstallAndStart(ctx context.Context, name string, metadata map[string]string, out io.Writer) (_ *Cloud, stop func() error, err error) {
	dir, err := DefaultDir()
	if err != nil {
		return nil, nil, err
	}
	dir = filepath.Join(dir, name)
	fmt.Fprintln(out, "Starting OpenStack (Keystone, Glance, Placement, Neutron and Nova). This takes about half a minute, and a few minutes the first time …")
	log := &strings.Builder{}
	if err := Install(ctx, dir, log); err != nil {
		return nil, nil, fmt.Errorf("%w:\n%s", err, log)
	}
	stop = func() error { return Stop(context.WithoutCancel(ctx), dir, io.Discard) }
	c, err := Start(ctx, dir, log)
	if err != nil {
		_ = stop() // err has the reason
		return nil, nil, fmt.Errorf("%w:\n%s", err, log)
	}
	nova, err := c.NewNovaClient(ctx, DemoCloud)
	if err == nil {
		err = DeleteServersAndWait(ctx, nova, metadata)
	}
	if err != nil {
		_ = stop()
		return nil, nil, err
	}
	return c, stop, nil
}

func runScript(ctx context.Context, dir string, out io.Writer, name string, args ...string) error {
	at := filepath.Join(dir, "scripts")
	if err := unpackScripts(at); err != nil {
		return fmt.Errorf("OpenStack: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(at, name), args...) //nolint:gosec // an embedded script
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "OS_TEMPLATE="+filepath.Join(dir, "database.tar"))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("OpenStack: %s: %w", name, err)
	}
	return nil
}

func unpackScripts(to string) error {
	return fs.WalkDir(scripts, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := scripts.ReadFile(path)
		if err != nil {
			return err
		}
		file := filepath.Join(to, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if strings.HasPrefix(string(content), "#!") {
			mode = 0o700
		}
		return os.WriteFile(file, content, mode)
	})
}

// OpenStarted returns the OpenStack that runs in a directory.
func OpenStarted(dir string) (*Cloud, error) {
	c := &Cloud{Dir: dir}
	raw, err := os.ReadFile(filepath.Join(dir, "out", "ids.json")) //nolint:gosec // the developer chooses the directory
	if err != nil {
		return nil, fmt.Errorf("OpenStack in %s: %w", dir, err)
	}
	if err := json.Unmarshal(raw, &c.IDs); err != nil {
		return nil, fmt.Errorf("OpenStack in %s: ids.json: %w", dir, err)
	}
	if c.IDs.Endpoints["compute"] == "" {
		return nil, fmt.Errorf("OpenStack in %s: ids.json: %w", dir, errors.New("it has no Nova endpoint"))
	}
	return c, nil
}

// CloudsFile returns the path of clouds.yaml with the entries Demo, Other and Admin.
func (c *Cloud) CloudsFile() string { return filepath.Join(c.Dir, "out", "clouds.yaml") }

// Password returns the password of all users.
func (c *Cloud) Password() (string, error) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, "conf", "password"))
	if err != nil {
		return "", fmt.Errorf("OpenStack: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// skippedTestsFile is the name of a file in the directory of a running OpenStack. It lists the tests that were
// skipped for lack of time. `make test-openstack` counts them, because a run that skips most tests would look like a
// pass.
const skippedTestsFile = "not-begun"

func recordSkippedTest(dir, test string) error {
	f, err := os.OpenFile(filepath.Join(dir, skippedTestsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // the directory belongs to this test run
	if err != nil {
		return fmt.Errorf("record that %s was skipped: %w", test, err)
	}
	_, err = fmt.Fprintln(f, test)
	return errors.Join(err, f.Close())
}

// RequireForTest returns the OpenStack that `make test-openstack` has started. It skips the test if no OpenStack
// runs, or if the time in DeadlineVariable has passed.
func RequireForTest(tb testing.TB) *Cloud {
	tb.Helper()
	dir := os.Getenv(DirVariable)
	if dir == "" {
		tb.Skip("no OpenStack runs here: make test-openstack starts one")
	}
	if text := os.Getenv(DeadlineVariable); text != "" {
		deadline, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			tb.Fatalf("%s is %q: must be seconds since 1970", DeadlineVariable, text)
		}
		if !time.Now().Before(time.Unix(deadline, 0)) {
			if err := recordSkippedTest(dir, tb.Name()); err != nil {
				tb.Error(err)
			}
			tb.Skip("the time for the tests with OpenStack is over")
		}
	}
	c, err := OpenStarted(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}
