package controller

import "net/http"

// FrontServer is the HTTP server in front of an Updater.
type FrontServer interface {
	http.Handler
	EndWaits()
}

// newServer makes one of a pool. It is set by package controller_test, since the server's package imports this one.
var newServer func(pool string, b Backend, n *Native, u *Updater, strict bool) FrontServer

// SetNewServer sets newServer.
func SetNewServer(f func(pool string, b Backend, n *Native, u *Updater, strict bool) FrontServer) {
	newServer = f
}
