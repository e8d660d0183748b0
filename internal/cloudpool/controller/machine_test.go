package controller

import (
	"github.com/slipway-dev/slipway/internal/cloudpool/pooltest"
)

var newUUID, newMachine, newNode = pooltest.NewUUID, pooltest.NewMachine, pooltest.NewNode
