package controller_test

import (
	"log/slog"

	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
)

func init() {
	controller.SetNewServer(func(pool string, _ controller.Backend, n *controller.NativePool, u *controller.Updater, strict bool) controller.FrontServer {
		return httpserver.NewServer(httpserver.ServerOptions{StrictCompat: strict, Log: slog.New(slog.DiscardHandler)},
			&httpserver.ServedPool{Name: pool, Native: n, Updater: u})
	})
}
