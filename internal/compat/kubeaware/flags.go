package kubeaware

import (
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/compat"
)

// Flags holds the values of the tool's flags and of the flags that Slipway adds.
type Flags struct {
	ConfigFile  string
	Port        int
	ShowVersion bool
	// Verbosity is glog's -v.
	Verbosity int

	// Additional flags.
	Address                 string
	StrictCompat            bool
	TLSCertFile, TLSKeyFile string
	ClientCAFile            string
	Authorize               bool
	Namespace               string
	MetricsListen           string
	RemoveLastWorker        bool
	// InstallCRDsByDefault means that InstallCRDs is the default and not the user's choice.
	InstallCRDs, InstallCRDsByDefault bool

	// Warnings report flags without effect.
	Warnings []string
}

// ParseFlags parses the command line. A flag may have one or two dashes. It prints errors and the help to stderr.
func ParseFlags(args []string, getenv func(string) string, stderr io.Writer) (*Flags, error) {
	f := &Flags{}
	fs := flag.NewFlagSet(Tool, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.ConfigFile, "config-file", DefaultFile, "path to the configuration file")
	fs.IntVar(&f.Port, "port", DefaultPort, "port of the API")
	fs.BoolVar(&f.ShowVersion, "version", false, "print the version and exit")
	fs.IntVar(&f.Verbosity, "v", 0, "log level: 4 or more enables debug logs")
	namespace := getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "kube-system"
	}
	fs.StringVar(&f.Address, "address", "", "address of the API; if empty, all interfaces, as with the original tool")
	fs.BoolVar(&f.StrictCompat, "strict-compat", false, "answer every failure with 500, as the original tool does")
	fs.StringVar(&f.TLSCertFile, "tls-cert-file", "", "server certificate, PEM; if empty, the API uses plain HTTP")
	fs.StringVar(&f.TLSKeyFile, "tls-private-key-file", "", "private key of the server certificate, PEM")
	fs.StringVar(&f.ClientCAFile, "client-ca-file", "", "CA certificates of client certificates, PEM")
	fs.BoolVar(&f.Authorize, "authorize", false, "authenticate and authorize clients through the API server; tokens need the audience slipway-cloudpool")
	fs.StringVar(&f.Namespace, "namespace", namespace, "namespace of the Leases and PoolUpdates")
	fs.StringVar(&f.MetricsListen, "metrics-listen", "", "address of /metrics, /healthz and /readyz, such as 127.0.0.1:9820; if empty, not served, as with the original tool")
	fs.BoolVar(&f.RemoveLastWorker, "remove-last-worker", false, "allow removal of the cluster's last Ready and schedulable node")
	fs.BoolVar(&f.InstallCRDs, "install-crds", true, "install or upgrade Slipway's CustomResourceDefinitions at the start")
	ignored := []string{"logtostderr", "alsologtostderr", "stderrthreshold", "vmodule", "log_dir", "log_backtrace_at"}
	for _, name := range ignored {
		fs.Var(ignoredFlag{name == "logtostderr" || name == "alsologtostderr"}, name, "has no effect: logs go to standard error")
	}
	if err := compat.ParseFlags(fs, args); err != nil {
		return nil, err
	}
	f.InstallCRDsByDefault = true
	fs.Visit(func(given *flag.Flag) {
		if given.Name == "install-crds" {
			f.InstallCRDsByDefault = false
		}
		if slices.Contains(ignored[1:], given.Name) {
			f.Warnings = append(f.Warnings, "-"+given.Name+": has no effect: logs go to standard error")
		}
	})
	if fs.NArg() > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("ignored arguments that are not flags: %q", fs.Args()))
	}
	if f.Port < 0 || f.Port > 65535 {
		return nil, &compat.UsageError{Err: fmt.Errorf("-port: %d: want 0 to 65535", f.Port)}
	}
	return f, nil
}

// ignoredFlag is a flag that accepts any value and ignores it.
type ignoredFlag struct{ isBool bool }

func (ignoredFlag) String() string     { return "" }
func (ignoredFlag) Set(string) error   { return nil }
func (i ignoredFlag) IsBoolFlag() bool { return i.isBool }

// ListenAddress returns the address on which the cloudpool API listens.
func (f *Flags) ListenAddress() string {
	return net.JoinHostPort(strings.Trim(f.Address, "[]"), strconv.Itoa(f.Port))
}
