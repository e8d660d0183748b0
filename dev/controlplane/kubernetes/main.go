//go:build controlplane

// Command kubernetes is kube-apiserver, kube-controller-manager and kube-scheduler in one program. The first argument
// selects one of them. They share most packages, so one program links three times as fast. The build tag hides it from
// `./...`, because tests and linters would compile all of Kubernetes. All supported versions share this file.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // for time zones of CronJobs

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	// The name of the program is part of the user agent.
	os.Args = os.Args[1:]
	if len(os.Args) == 0 || commands[os.Args[0]] == nil {
		fmt.Fprintln(os.Stderr, "kubernetes: the first argument must be kube-apiserver, kube-controller-manager or kube-scheduler")
		os.Exit(2)
	}
	os.Exit(cli.Run(commands[os.Args[0]]()))
}
