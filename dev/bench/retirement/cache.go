package retirement

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

const (
	cacheProcess = "plain-informers"
	// cacheGCPercent is the GOGC value of the manager.
	cacheGCPercent = "50"
)

// RunCache caches all pods and nodes with client-go's informers, without a transform. Like the manager, it reads protobuf, which
// is not client-go's default. The manager is compared with it. It listens on a loopback address and answers /readyz with 200
// once the caches are full. It returns when ctx ends.
func RunCache(ctx context.Context, listen, kubeconfig string) error {
	if host, _, err := net.SplitHostPort(listen); err != nil || !net.ParseIP(host).IsLoopback() {
		return fmt.Errorf("listen address %q: must be a loopback address with a port", listen)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = apiruntime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.Core().V1().Pods().Informer()
	factory.Core().V1().Nodes().Informer()
	factory.Start(ctx.Done())
	var full atomic.Bool
	server := &http.Server{Addr: listen, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !full.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	go func() {
		factory.WaitForCacheSync(ctx.Done())
		full.Store(true)
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// startCache starts RunCache as a separate process, and waits until its caches are full.
func (b *retirementBench) startCache(ctx context.Context) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	listen, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return err
	}
	_, err = b.StartProcess(ctx, controlplane.Command{
		Name: cacheProcess, Path: path, Args: []string{"cache", "--listen", listen, "--kubeconfig", b.Kubeconfig()},
		Env: []string{"GOGC=" + cacheGCPercent}, ReadyURL: "http://" + listen + "/readyz",
	})
	return err
}
