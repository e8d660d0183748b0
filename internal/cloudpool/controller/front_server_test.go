package controller

import "net/http"

// FrontServer is the HTTP server in front of an Updater.
type FrontServer interface {
	http.Handler
	CancelWaits()
}

// newServer returns the server of a pool. Package controller_test sets it, because the server's package imports this one.
var newServer func(pool string, b Backend, n *NativePool, u *Updater, strict bool) FrontServer

func SetNewServer(f func(pool string, b Backend, n *NativePool, u *Updater, strict bool) FrontServer) {
	newServer = f
}
