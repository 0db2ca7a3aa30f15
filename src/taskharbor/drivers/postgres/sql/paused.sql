SELECT queue FROM harbor.paused
