package cloudpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// RunForwardProxy runs a proxy as a baseline for slipway cloudpool: the standard library's reverse proxy. It listens
// on a loopback address and forwards all requests to a URL. It returns when ctx ends.
func RunForwardProxy(ctx context.Context, listen, to string) error {
	target, err := url.Parse(to)
	if err != nil {
		return err
	}
	if host, _, err := net.SplitHostPort(listen); err != nil || !net.ParseIP(host).IsLoopback() {
		return fmt.Errorf("listen address %q: must be a loopback address with a port", listen)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConnsPerHost: connections},
	}
	server := &http.Server{Addr: listen, Handler: proxy, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
