package kubeaware

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/compat"
)

// Flags are the tool's, and some that it did not have.
type Flags struct {
	ConfigFile  string
	Port        int
	ShowVersion bool
	// Verbosity is glog's -v.
	Verbosity int

	// Beyond the tool's.
	Address                 string
	StrictCompat            bool
	TLSCertFile, TLSKeyFile string
	ClientCAFile            string
	Authorize               bool
	Namespace               string
	MetricsListen           string
	InstallCRDs             bool
	RemoveLastWorker        bool

	// Warnings are about flags that mean nothing here.
	Warnings []string
}

// ParseFlags reads the command line, whose flags have one dash or two. What is wrong, and -help, is written to stderr.
func ParseFlags(args []string, getenv func(string) string, stderr io.Writer) (*Flags, error) {
	f := &Flags{}
	fs := flag.NewFlagSet(Tool, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.ConfigFile, "config-file", DefaultFile, "path to the configuration file")
	fs.IntVar(&f.Port, "port", DefaultPort, "port of the API")
	fs.BoolVar(&f.ShowVersion, "version", false, "print the version and exit")
	fs.IntVar(&f.Verbosity, "v", 0, "log level: from 4 on, everything")
	namespace := getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "kube-system"
	}
	fs.StringVar(&f.Address, "address", "", "address of the API; empty is every interface, as it always was")
	fs.BoolVar(&f.StrictCompat, "strict-compat", false, "answer every failure with 500, as it always was")
	fs.StringVar(&f.TLSCertFile, "tls-cert-file", "", "certificate to serve with; without one it is plain HTTP")
	fs.StringVar(&f.TLSKeyFile, "tls-private-key-file", "", "its key")
	fs.StringVar(&f.ClientCAFile, "client-ca-file", "", "authorities of the clients' certificates")
	fs.BoolVar(&f.Authorize, "authorize", false, "ask the API server who a client is, and whether it may; its token has to be for the audience slipway-cloudpool")
	fs.StringVar(&f.Namespace, "namespace", namespace, "namespace of the Leases and of the record of updates")
	fs.StringVar(&f.MetricsListen, "metrics-listen", "", "address of /metrics, /healthz and /readyz, such as 127.0.0.1:9820; empty is none, as it always was")
	fs.BoolVar(&f.RemoveLastWorker, "remove-last-worker", false, "remove also the last node of the cluster that is Ready and takes pods")
	fs.BoolVar(&f.InstallCRDs, "install-crds", true, "install or upgrade Slipway's CustomResourceDefinitions at the start")
	ignored := []string{"logtostderr", "alsologtostderr", "stderrthreshold", "vmodule", "log_dir", "log_backtrace_at"}
	for _, name := range ignored {
		fs.Var(ignore{name == "logtostderr" || name == "alsologtostderr"}, name, "means nothing here: logs go to the standard error")
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, &compat.UsageError{Err: err}
	}
	fs.Visit(func(given *flag.Flag) {
		if slices.Contains(ignored[1:], given.Name) {
			f.Warnings = append(f.Warnings, "-"+given.Name+": means nothing here: logs go to the standard error")
		}
	})
	if fs.NArg() > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("arguments that are no flags are passed over: %q", fs.Args()))
	}
	if f.Port < 0 || f.Port > 65535 {
		return nil, &compat.UsageError{Err: fmt.Errorf("-port: %d: want 0 to 65535", f.Port)}
	}
	return f, nil
}

// ignore takes any value.
type ignore struct{ isBool bool }

func (ignore) String() string     { return "" }
func (ignore) Set(string) error   { return nil }
func (i ignore) IsBoolFlag() bool { return i.isBool }

// Listen is the address of the API.
func (f *Flags) Listen() string {
	return net.JoinHostPort(strings.Trim(f.Address, "[]"), strconv.Itoa(f.Port))
}
