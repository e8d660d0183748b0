// Package openstack starts a real OpenStack on loopback for tests: Keystone, Glance, Placement, Neutron and Nova of
// Debian 12's packages (OpenStack Zed), with MariaDB and RabbitMQ. Everything is real but the hypervisor, which is Nova's
// own fake driver, and the network below Neutron, which ml2/nullbind.py stands for. There is no Cinder, no metadata
// service and no TLS.
//
// What is to be known of it: a server takes 1.3 to 2.4 s to become ACTIVE and about 1.5 s to go; Nova's quota is not exact
// under concurrent creates; and the fake driver forgets its servers when nova-compute is started again.
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

// scripts do the work: install, up and down, which also serve at a shell.
//
//go:embed install up down seed.py ml2
var scripts embed.FS

// Variable is the environment variable that names the directory of a running OpenStack for tests.
const Variable = "SLIPWAY_OPENSTACK"

// UntilVariable is the environment variable with the time, in seconds since 1970, from which on no test begins any more.
const UntilVariable = "SLIPWAY_OPENSTACK_UNTIL"

// The entries of clouds.yaml.
const (
	Demo  = "demo"  // the project of the tests, without quota, with a network, a security group and a key pair
	Other = "other" // another project, with Nova's own quota and nothing in it
	Admin = "admin"
)

// Cloud is an OpenStack that runs.
type Cloud struct {
	// Dir has its state, logs and process IDs.
	Dir string
	// IDs are those of what it begins with.
	IDs IDs
}

// IDs are those of what a cloud begins with. All but the flavors are of the project Demo.
type IDs struct {
	Image         string            `json:"image"`          // named tiny, public
	Network       string            `json:"network"`        // named demo-net
	SecurityGroup string            `json:"security_group"` // named demo-sg
	Project       string            `json:"project"`
	User          string            `json:"user"`
	Flavors       map[string]string `json:"flavors"`   // m.2c4g, m.4c8g, t.1c512m, and giant, which fits nowhere
	Endpoints     map[string]string `json:"endpoints"` // by the type of the service
}

// KeyPair is the name of the project's key pair.
const KeyPair = "demo-key"

// FirstZone and SecondZone are the availability zones of the two hosts that the OpenStack of the tests has. One that has a
// single host has no zones but Nova's own.
const (
	FirstZone  = "west"
	SecondZone = "east"
)

// DefaultDir is where an OpenStack is kept unless it is said otherwise: beside what dev/controlplane has compiled.
func DefaultDir() (string, error) {
	if dir := os.Getenv(controlplane.CacheVariable); dir != "" {
		return filepath.Join(dir, "openstack"), nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a place for OpenStack (%s names one): %w", controlplane.CacheVariable, err)
	}
	return filepath.Join(user, "slipway-dev", "openstack"), nil
}

// Install installs the packages, for which it has to be root. What is there already is left alone.
func Install(ctx context.Context, dir string, out io.Writer) error {
	return run(ctx, dir, out, "install")
}

// Start starts an OpenStack in a directory, anew or with what it had, and returns when all of it works: in about 40 s the
// first time. Its processes outlive this one; Stop ends them.
func Start(ctx context.Context, dir string, out io.Writer) (*Cloud, error) {
	if err := run(ctx, dir, out, "up", filepath.Join(dir, "run")); err != nil {
		return nil, err
	}
	return Open(filepath.Join(dir, "run"))
}

// Stop ends the processes that Start has started there, by their IDs.
func Stop(ctx context.Context, dir string, out io.Writer) error {
	return run(ctx, dir, out, "down", filepath.Join(dir, "run"))
}

// Begin installs OpenStack if need be and starts one that has a place of its own, of that name, beside those of others. Its
// database outlives it: servers of the project Demo with this in their metadata, which a run that was cut off has left, are
// deleted first. stop ends it.
func Begin(ctx context.Context, name string, metadata map[string]string, out io.Writer) (_ *Cloud, stop func() error, err error) {
	dir, err := DefaultDir()
	if err != nil {
		return nil, nil, err
	}
	dir = filepath.Join(dir, name)
	fmt.Fprintln(out, "OpenStack is started: Keystone, Glance, Placement, Neutron and Nova. That takes about half a minute, and a few more the first time …")
	log := &strings.Builder{}
	if err := Install(ctx, dir, log); err != nil {
		return nil, nil, fmt.Errorf("%w:\n%s", err, log)
	}
	stop = func() error { return Stop(context.WithoutCancel(ctx), dir, io.Discard) }
	c, err := Start(ctx, dir, log)
	if err != nil {
		_ = stop() // what is said of it is in err
		return nil, nil, fmt.Errorf("%w:\n%s", err, log)
	}
	nova, err := c.Nova(ctx, Demo)
	if err == nil {
		err = RemoveServers(ctx, nova, metadata)
	}
	if err != nil {
		_ = stop()
		return nil, nil, err
	}
	return c, stop, nil
}

// run runs one of the scripts.
func run(ctx context.Context, dir string, out io.Writer, name string, args ...string) error {
	at := filepath.Join(dir, "scripts")
	if err := unpack(at); err != nil {
		return fmt.Errorf("OpenStack: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(at, name), args...) //nolint:gosec // one of ours
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "OS_TEMPLATE="+filepath.Join(dir, "database.tar"))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("OpenStack: %s: %w", name, err)
	}
	return nil
}

func unpack(to string) error {
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

// Open finds the OpenStack that runs in a directory.
func Open(dir string) (*Cloud, error) {
	c := &Cloud{Dir: dir}
	raw, err := os.ReadFile(filepath.Join(dir, "out", "ids.json")) //nolint:gosec // the directory is the developer's own choice
	if err != nil {
		return nil, fmt.Errorf("OpenStack in %s: %w", dir, err)
	}
	if err := json.Unmarshal(raw, &c.IDs); err != nil {
		return nil, fmt.Errorf("OpenStack in %s: ids.json: %w", dir, err)
	}
	if c.IDs.Endpoints["compute"] == "" {
		return nil, fmt.Errorf("OpenStack in %s: ids.json: %w", dir, errors.New("it has no address of Nova"))
	}
	return c, nil
}

// CloudsFile is its clouds.yaml, which has Demo, Other and Admin.
func (c *Cloud) CloudsFile() string { return filepath.Join(c.Dir, "out", "clouds.yaml") }

// Password is that of all its users.
func (c *Cloud) Password() (string, error) {
	raw, err := os.ReadFile(filepath.Join(c.Dir, "conf", "password"))
	if err != nil {
		return "", fmt.Errorf("OpenStack: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// notBegun is the file, in the directory of a running OpenStack, with the names of the tests for which it was too late.
// Whoever has started it counts them: a run that skips most of its tests would look like one that has passed.
const notBegun = "not-begun"

func noteNotBegun(dir, test string) error {
	f, err := os.OpenFile(filepath.Join(dir, notBegun), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // the folder is the one that this test run was started for
	if err != nil {
		return fmt.Errorf("noting that %s was not begun: %w", test, err)
	}
	_, err = fmt.Fprintln(f, test)
	return errors.Join(err, f.Close())
}

// ForTest gives the OpenStack that `make test-openstack` has started, and skips the test when there is none, or when the
// time is over by which tests may begin.
func ForTest(tb testing.TB) *Cloud {
	tb.Helper()
	dir := os.Getenv(Variable)
	if dir == "" {
		tb.Skip("no OpenStack runs here: make test-openstack starts one")
	}
	if text := os.Getenv(UntilVariable); text != "" {
		until, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			tb.Fatalf("%s is %q: want seconds since 1970", UntilVariable, text)
		}
		if !time.Now().Before(time.Unix(until, 0)) {
			if err := noteNotBegun(dir, tb.Name()); err != nil {
				tb.Error(err)
			}
			tb.Skip("the time for the tests with OpenStack is over")
		}
	}
	c, err := Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}
